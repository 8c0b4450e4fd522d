"""Compiles a run for accelerators that are not at hand, and bounds its speed.

`seedrl compile --config=vtrace_atari --target=v5e:2x4 --target=h200`
compiles every program of the run from shapes alone, on this machine's CPU, and
prints what each needs of a device and what the run can reach at most. It opens
neither environments nor accelerators.
"""

import os

from absl import flags

from seedrl_jax.lab.planning import targets as targets_lib
from seedrl_jax.launch import config_flag, program

_CONFIG = config_flag.define(
  f"The run's configuration, {config_flag.DEFAULT} by default."
)
_TARGET = flags.DEFINE_multi_string(
  'target',
  [],
  'Devices of a host: v4, v5e, v5p or v6e with the shape of its grid of chips, '
  'as v5e:2x4; a100, h100 or h200, of several as h100:8. May be repeated.',
)


def main() -> None:
  """Compiles and prints."""
  if not _TARGET.value:
    raise ValueError('--target is missing; give one, as --target=v5e:2x4.')
  targets = [targets_lib.parse(text) for text in _TARGET.value]
  targets_lib.configure(targets)
  # A run on this machine keeps its processors.
  os.nice(10)
  from seedrl_jax.lab.planning import programs, report
  from seedrl_jax.run import layout
  from seedrl_jax.run import plan as plan_lib

  config = _CONFIG.value
  layout.check(config)
  for target in targets:
    plan = plan_lib.make_plan(config, devices=targets_lib.devices(target))
    report.print_all(config.agent, target, plan, programs.compile_all(plan))


if __name__ == '__main__':
  # XLA's compilers report what they do not find.
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  program.start(main, config_flag.parse)
