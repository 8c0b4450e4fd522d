"""An actor: `seedrl actor --learner=unix:/path` or `=host:port`.

Steps the environments that the learner (seedrl train) names and acts for.
It may start before the learner, survives it, and ends with the training, or
after `--patience` seconds without a learner. It needs no JAX
(`launch/setup.sh --actor`), except with `--inference=local`: then it acts
itself, on the CPU, and writes its unrolls to the learner's Reverb server.
"""

import functools
import os
import socket
import sys
import threading
from collections.abc import Sequence
from typing import Any

from absl import flags

from seedrl_jax.launch import allow_flags, program
from seedrl_jax.runtime import process

flags.adopt_module_key_flags(allow_flags)

# For groups to end, even if they are making or stepping environments.
_JOIN_SECONDS = 120.0

_LEARNER = flags.DEFINE_string(
  'learner', '', 'Address of the learner: unix:/path or host:port.'
)
_ENVS = flags.DEFINE_integer(
  'envs_per_group', 8, 'Environments of each group.', lower_bound=1
)
_GROUPS = flags.DEFINE_integer(
  'groups',
  2,
  'Groups of environments; one steps while others wait for their actions.',
  lower_bound=1,
)
_INFERENCE = flags.DEFINE_enum(
  'inference',
  'central',
  ['central', 'local'],
  "Who acts: the learner, or, as in IMPALA, this process with the learner's "
  'parameters. Then all groups are one, of which a group acts at a time.',
)
_THREADS = flags.DEFINE_integer(
  'threads',
  0,
  "Of a group's environments. 0: what the cores allow.",
  lower_bound=0,
  upper_bound=1024,
)
_AFFINITY = flags.DEFINE_integer(
  'affinity',
  -1,
  'First processor for these threads. -1: any.',
  lower_bound=-1,
)
_TASK = flags.DEFINE_string(
  'task',
  '',
  'Task of all environments, if the learner has several (env.tasks). Without '
  'it, they get the tasks round-robin.',
)
_PATIENCE = flags.DEFINE_float(
  'patience',
  600.0,
  'Seconds to look for a learner that is not there, be it the first one or one '
  'that was there. 0: for ever.',
  lower_bound=0.0,
)
_TLS_ROOTS = flags.DEFINE_string(
  'tls_roots',
  '',
  "File, in PEM, of the authorities that sign the learner's certificate, or "
  'of that itself. A learner on another machine must have one.',
)
_TOKEN_FILE = flags.DEFINE_string(
  'token_file',
  '',
  'File with the secret that the learner wants to be shown. It goes only over '
  'TLS (--tls_roots) or a unix socket.',
)
_INSECURE = flags.DEFINE_bool(
  'insecure', False, 'Call a learner on another machine without TLS.'
)


def _say(line: str) -> None:
  # In one write, as groups print from several threads.
  process.say(f'actor: {line}')


def _make_groups() -> list[Any]:
  """Makes the flags' `actor.EnvGroup`s; raises ValueError if impossible."""
  from seedrl_jax.actors.actor_side import actor
  from seedrl_jax.net import addresses, credentials

  options = actor.GroupOptions(
    address=addresses.parse('--learner', _LEARNER.value),
    security=credentials.actor_security(
      _TLS_ROOTS.value, _TOKEN_FILE.value, _INSECURE.value
    ),
    num_envs=_ENVS.value,
    num_threads=_THREADS.value,
    affinity=_AFFINITY.value,
    patience=_PATIENCE.value,
    name=f'{socket.gethostname()}:{os.getpid()}',
    allowed=allow_flags.allowed(),
    task=_TASK.value,
  )
  if _INFERENCE.value == 'central':
    return [actor.EnvGroup(options, _say) for _ in range(_GROUPS.value)]
  # All environments are one group that acts itself.
  try:
    from seedrl_jax.actors.actor_side import local_inference
  except ModuleNotFoundError as e:
    raise ValueError(
      f'--inference=local: {e.name} is not installed here; install all that '
      'learners need (launch/setup.sh), or take --inference=central.'
    ) from e
  process.configure()
  options = options._replace(
    num_envs=options.num_envs * _GROUPS.value,
    batch_size=options.num_envs,
  )
  make_local_actor = functools.partial(
    local_inference.LocalInference, options.address, options.security
  )
  return [actor.EnvGroup(options, _say, make_local_actor)]


def _serve(groups: Sequence[Any]) -> str:
  """Runs groups until the training ends or a signal comes; returns which."""
  from seedrl_jax.actors.actor_side import actor
  from seedrl_jax.envs import base
  from seedrl_jax.runtime import threads

  running = threads.ThreadGroup()
  reason = ''

  def run(group: actor.EnvGroup) -> None:
    nonlocal reason
    if group.run():
      # Ends all groups, even unconnected ones.
      reason = 'the training has ended'
      running.stop()

  signalled = threading.Event()
  process.on_stop(lambda *_: signalled.set())
  # All before the first start, as any group may end the others.
  for group in groups:
    running.on_stop(group.stop)
  for i, group in enumerate(groups):
    running.start(f'group-{i}', functools.partial(run, group))
  # Signal handlers run between these waits.
  while not running.wait(0.1) and not signalled.is_set():
    pass
  running.stop()
  stuck = running.join(_JOIN_SECONDS)
  if running.failure is not None:
    failure = running.failure
    if isinstance(failure.error, (actor.ActorError, base.EnvironmentFailed)):
      sys.exit(f'actor: {failure.error}')
    sys.exit(f'actor: thread {failure.thread} failed.\n{failure.text}')
  if stuck:
    sys.exit('actor: ' + '\n'.join(stuck))
  return reason or 'stopped'


def main() -> None:
  """Serves until the training ends, SIGINT, SIGTERM or SIGHUP."""
  if not _LEARNER.value:
    raise ValueError('--learner is missing; give the address of the learner.')
  # The groups report a lost learner themselves.
  os.environ.setdefault('GRPC_VERBOSITY', 'NONE')
  if _INFERENCE.value == 'local':
    process.restart_with_huge_pages()
    # Before JAX or EnvPool is imported: the learner owns the accelerator.
    os.environ['JAX_PLATFORMS'] = 'cpu'
  # Imports take a second, so parse flags first.
  _say(f'{_serve(_make_groups())}.')


if __name__ == '__main__':
  program.start(main)
