"""Plans a host that is not at hand.

Its devices are bound by the programs that are compiled for them, its cores by
the processor time that environments take on this machine.
"""

from collections.abc import Iterable
from typing import NamedTuple

import ml_collections

from seedrl_jax.lab.benchmarks import acting, timing
from seedrl_jax.lab.planning import bounds, targets
from seedrl_jax.run import parts as parts_lib
from seedrl_jax.run import setup as setup_lib


class Plan(NamedTuple):
  """A split of a host's devices beside its environments.

  Attributes:
    env_steps: steps per second of environments that have all cores.
    cores: with which environments would not bind the split.
  """

  split: bounds.Split
  env_steps: float
  cores: float

  @property
  def steps(self) -> float:
    """Steps per second at most."""
    return min(self.split.steps, self.env_steps)

  @property
  def limit(self) -> str:
    is_env = self.env_steps < self.split.steps
    return 'environments' if is_env else self.split.limit


def time_envs(
  config: ml_collections.ConfigDict, windows: timing.Windows
) -> timing.Timing:
  """Times a run's environments on this machine's CPU."""
  config = config.copy_and_resolve_references()
  config.topology.inference_to_training = ''
  config.topology.inference_affinity_offset = -1
  config.env.thread_affinity_offset = -1
  config.replay.backend = 'embedded'
  if config.replay.max_size is not None:
    # Nothing is stored.
    config.replay.max_size = 2 * config.batch_size
    config.replay.min_size = 1
  setup = setup_lib.plan(config)
  parts = parts_lib.open_parts(setup, setup_lib.initial_state(setup))
  try:
    return acting.time_envs(setup, parts, windows)
  finally:
    parts.close()


def plans(
  splits: Iterable[bounds.Split], env: timing.Timing, cores: int
) -> list[Plan]:
  """Returns each split with environments on `cores` cores, best first.

  Of splits that environments bind, that is the one that could do most.
  """
  all_plans = [
    Plan(split, cores / env.cpu_seconds, split.steps * env.cpu_seconds)
    for split in splits
  ]
  return sorted(all_plans, key=lambda p: (p.steps, p.split.steps), reverse=True)


def row(plan: Plan) -> dict[str, str]:
  """Returns the table row of a plan."""
  split = plan.split
  return {
    'inference:training': split.label,
    'training, steps/s': _figure(split.learning),
    'inference, steps/s': _figure(split.acting),
    'environments, steps/s': _figure(plan.env_steps),
    'bound by': plan.limit,
    'at most, steps/s': _figure(plan.steps),
    'cores for the devices': _figure(plan.cores),
  }


def _figure(x: float) -> str:
  """Returns three digits: a bound is not known better."""
  return f'{float(f"{x:.3g}"):,.0f}'


def advice(target: targets.Target, cores: int, best: Plan) -> str:
  """Returns the sentence that says what to take."""
  split = best.split
  take = (
    f'take --config.topology.inference_to_training={split.ratio}'
    if split.inference
    else 'its one device does both'
  )
  env, learning, acting = map(
    _figure, (best.env_steps, split.learning, split.acting)
  )
  return (
    f'{target} with {cores} cores: environments bound at {env} steps/s; '
    f'training at {learning}; inference at {acting}; {take}.'
  )
