"""Finds the flags with which a run is fastest on this machine.

`seedrl autotune --config=vtrace_cartpole` measures the stages of the
run. Tries what could matter but leaves learning as it is; each candidate
alternates with the best so far. Prints the flags to paste. With
`--target=v5e:2x4 --cores=112` it plans a machine that is not at hand, from the
programs' bounds and this machine's environments.
"""

import os
import sys
from collections.abc import Sequence

import ml_collections
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
_ALTER_LEARNING = flags.DEFINE_bool(
  'alter_learning',
  False,
  'Also try what changes how a run learns: more environments, and rarer '
  'publishing. Such a run may be faster, and yet learn later.',
)
_TARGET = flags.DEFINE_string(
  'target',
  '',
  'Devices to plan for instead, as for seedrl compile: v5e:2x4, h100:8.',
)
_CORES = flags.DEFINE_integer(
  'cores', 0, "Processor cores of the target's host.", lower_bound=0
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
    if _TARGET.value:
      _plan()
    else:
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
      'to the bit; leave it out to tune.'
    )
  if config.actors.max_envs:
    raise ValueError(
      f'--config.actors.max_envs={config.actors.max_envs}: actors are other '
      "processes' and cannot be tuned here; leave it out to tune the learner "
      'with environments of its own.'
    )
  if bool(_TARGET.value) != bool(_CORES.value):
    raise ValueError(
      '--target and --cores need each other; give both, as --target=v5e:2x4 '
      '--cores=112.'
    )


def _search() -> None:
  process.configure()
  from seedrl_jax.agents import base
  from seedrl_jax.lab.benchmarks import tuning
  from seedrl_jax.run import layout, system

  config = _measured_config()
  layout.check(config, base.allowed(config))
  tuning.begin_early(config)
  seconds = min(_MOST_SECONDS, _SECONDS_PER_MINUTE * _MINUTES.value)
  try:
    tuning.tune(
      config, seconds, 60 * _MINUTES.value, _ALTER_LEARNING.value, process.say
    )
  except (MemoryError, system.RunFailed) as e:
    sys.exit(f'autotune: {e}')


def _measured_config() -> ml_collections.ConfigDict:
  config = benchmark.endless(_CONFIG.value.copy_and_resolve_references())
  config.checkpoint.replay = False
  return config


def _plan() -> None:
  from seedrl_jax.agents import base
  from seedrl_jax.lab import tables
  from seedrl_jax.lab.benchmarks import timing
  from seedrl_jax.lab.planning import bounds, programs, targets
  from seedrl_jax.run import layout
  from seedrl_jax.run import plan as plan_lib

  target = targets.parse(_TARGET.value)
  targets.configure([target])
  config, cores = _measured_config(), _CORES.value
  layout.check(config, base.allowed(config))
  plan = plan_lib.make_plan(config, devices=targets.devices(target))
  env = bounds.time_envs(config, timing.Windows(5, 1.0))
  print(
    f'{plan.env_spec.env_id}: {env.cpu_seconds * 1e6:.2f} µs of processor '
    f'time a step here, {env.text()} steps/s on {timing.cores()} cores',
    flush=True,
  )
  splits = bounds.splits(plan, list(programs.compile_all(plan)), target.device)
  plans = bounds.plans(splits, env, cores)
  tables.show(map(bounds.plan_row, plans))
  if not all(split.exact for split in splits):
    print('* scaled from the compiled split')
  print(
    f'\n{bounds.advice(target, cores, plans[0])}\nAn estimate from bounds: '
    'devices at their published peaks, but with an estimated time for each '
    'operation; environments that have all cores; cores as fast as these. '
    'A run is slower.'
  )


if __name__ == '__main__':
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  program.run(main, config_flag.parse, huge_pages=True)
