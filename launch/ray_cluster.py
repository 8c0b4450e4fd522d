"""Trains on a Ray cluster: `seedrl ray_cluster --learners=2 …`.

Takes all flags of seedrl train. Ray gives each learner a node of its own and
places actors where there are CPUs. An actor that dies starts again; if a
learner does, all start again from the last checkpoint.
"""

import functools
import math
import os
import pathlib
import re
import shlex
import sys

from absl import flags

from seedrl_jax.engines import access, ray_cluster
from seedrl_jax.launch import config_flag, program, train
from seedrl_jax.runtime import progress

flags.adopt_module_key_flags(train)

# What this program gives the learners of each start.
_SET_LATER = (
  'actors.addresses',
  'actors.max_envs',
  'actors.tls_certificate',
  'actors.tls_key',
  'actors.token_file',
  'env.num_envs',
)

_LEARNERS = flags.DEFINE_integer(
  'learners', 1, 'Hosts that train together, each on a node.', lower_bound=1
)
_LEARNER_CPUS = flags.DEFINE_float(
  'learner_cpus', 4.0, 'CPUs to reserve for a learner.', lower_bound=0.1
)
_LEARNER_GPUS = flags.DEFINE_float(
  'learner_gpus',
  -1.0,
  'GPUs of a learner, which sees no others. -1: all of a node, of the one that '
  'has the fewest, but some; none if no node has any.',
  lower_bound=-1.0,
)
_ACTORS = flags.DEFINE_integer(
  'actors',
  0,
  'Actors. They step all environments, unless --config.env.num_envs is given.',
  lower_bound=0,
)
_ACTOR_CPUS = flags.DEFINE_float(
  'actor_cpus', 2.0, 'CPUs and threads of an actor.', lower_bound=0.1
)
_ACTOR_FLAGS = flags.DEFINE_string(
  'actor_flags',
  '',
  'Further flags of seedrl actor, as "--groups=3 --threads=1". Actors of '
  'more than 16 environments need a larger --config.actors.max_envs.',
)
_ADDRESS = flags.DEFINE_string(
  'ray_address',
  '',
  'The cluster, as host:port. Empty: RAY_ADDRESS, else that of this machine, '
  'else Ray starts one here.',
)
_PLACE_TIMEOUT = flags.DEFINE_float(
  'place_timeout',
  600.0,
  'Seconds in which the learners must have nodes, as some may yet be added.',
  lower_bound=0.0,
)
_MAX_RESTARTS = flags.DEFINE_integer(
  'max_restarts',
  10,
  'How often learners that fail start again. Lost nodes do not count.',
  lower_bound=0,
)
# Of an actor with two groups of eight, the default.
_ENVS_PER_ACTOR = 16
# A learner's progress line.
_PROGRESS = re.compile(r'\((\d+)%\) \| .* \| waits for ')


def main() -> None:
  """Trains until the end, SIGINT, SIGTERM or SIGHUP."""
  line = progress.ProgressLine()

  def show(text: str) -> None:
    if match := _PROGRESS.search(text):
      line.update(text, int(match[1]) / 100)
    else:
      line.say(text)

  layout = _plan()
  actor_access = access.configured(flags.FLAGS.config.actors)
  run = ray_cluster.RayRun(_ADDRESS.value or None, layout, actor_access, show)
  stop = train.Stop()
  # After Ray has set handlers of its own.
  stop.install()
  stop.attach(run)
  try:
    run.run()
  finally:
    run.close()


def _plan() -> ray_cluster.Plan:
  from seedrl_jax.run import layout

  config, extra_flags = flags.FLAGS.config, []
  room = _ENVS_PER_ACTOR * math.ceil(_ACTORS.value / _LEARNERS.value)
  for key, value in ('env.num_envs', 0), ('actors.max_envs', room):
    if _ACTORS.value and key not in config_flag.overrides():
      config.update_from_flattened_dict({key: value})
      extra_flags.append(f'--config.{key}={value}')
  layout.check(config)
  # Learners get all flags but those of this program, and the default --config,
  # which parsing has inserted.
  program_flags = flags.FlagValues()
  program_flags.set_gnu_getopt()
  module = flags.FLAGS.find_module_defining_flag(_LEARNERS.name)
  for defined in flags.FLAGS.get_flags_for_module(module):
    program_flags[defined.name] = defined
  _, *learner_flags = program_flags(sys.argv, known_only=True)
  return ray_cluster.Plan(
    folder=str(pathlib.Path(__file__).resolve().parent),
    learners=_LEARNERS.value,
    learner_cpus=_LEARNER_CPUS.value,
    learner_gpus=_LEARNER_GPUS.value,
    learner_flags=[*learner_flags, *extra_flags],
    actors=_ACTORS.value,
    actor_cpus=_ACTOR_CPUS.value,
    actor_flags=[
      f'--threads={max(1, int(_ACTOR_CPUS.value))}',
      *shlex.split(_ACTOR_FLAGS.value),
    ],
    place_seconds=_PLACE_TIMEOUT.value,
    max_failures=_MAX_RESTARTS.value,
  )


if __name__ == '__main__':
  os.environ.setdefault('GRPC_VERBOSITY', 'ERROR')
  parse = functools.partial(train.parse_flags, set_later=_SET_LATER)
  program.start(main, parse, (ValueError, ray_cluster.RunFailed))
