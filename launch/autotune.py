"""Finds the flags with which a run is fastest on this machine.

`seedrl autotune --config=vtrace_cartpole` measures the stages of the
run. Tries what could matter but leaves learning as it is; each candidate
alternates with the best so far. Prints the flags to paste.
"""

import os
import sys
from collections.abc import Sequence

from absl import flags

from seedrl_jax.configs import benchmark
from seedrl_jax.launch import config_flag, program
from seedrl_jax.runtime import process

_CONFIG = config_flag.define(
  f"The run's configuration, {config_flag.DEFAULT} by default."
)
_MINUTES = flags.DEFINE_float(
  'minutes',
  3.0,
  'How long to search. More minutes make longer windows, of up to 4 s.',
  lower_bound=0.0,
)
# Of a window; so a run is a small part of the search.
_SECONDS_PER_MINUTE = 0.25
_MOST_SECONDS = 4.0


def main(argv: Sequence[str]) -> None:
  """Measures and prints; exits with a message if something is wrong."""
  if len(argv) > 1:
    sys.exit(f'autotune: unexpected arguments: {" ".join(argv[1:])}')
  try:
    _check()
    _search()
  except ValueError as e:
    sys.exit(f'autotune: {e}')
  except KeyboardInterrupt:
    sys.exit('autotune: interrupted; what was taken so far is printed above.')


def _check() -> None:
  config = _CONFIG.value
  if config.deterministic:
    raise ValueError(
      '--config.deterministic=True: such a run waits at every step to be equal '
      'to the bit; omit it to tune.'
    )
  if config.actors.max_envs:
    raise ValueError(
      f'--config.actors.max_envs={config.actors.max_envs}: actors are other '
      "processes' and cannot be tuned here; omit it to tune the learner "
      'with environments of its own.'
    )


def _search() -> None:
  process.configure()
  from seedrl_jax.lab.benchmarks import tuning
  from seedrl_jax.run import layout, system

  config = benchmark.endless(_CONFIG.value.copy_and_resolve_references())
  config.checkpoint.replay = False
  layout.check(config)
  # A replay's updates begin early.
  config.replay.min_size = min(config.replay.min_size, config.batch_size)
  seconds = min(_MOST_SECONDS, _SECONDS_PER_MINUTE * _MINUTES.value)
  try:
    tuning.tune(config, seconds, 60 * _MINUTES.value, process.say)
  except (MemoryError, system.RunFailed) as e:
    sys.exit(f'autotune: {e}')


if __name__ == '__main__':
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  program.run(main, config_flag.parse, huge_pages=True)
