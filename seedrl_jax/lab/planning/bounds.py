"""What the compiled programs of a run allow at most.

A device needs at least the time of its FLOPs at its peak, and of its memory
traffic at its bandwidth. Each operation takes a while whatever its size, which
is estimated. Real programs are slower: these are bounds, not measurements. The
cores of a host that is not at hand are bound by the processor time that
environments take on this machine.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import ml_collections

from seedrl_jax.lab import tables
from seedrl_jax.lab.benchmarks import acting, ceilings, timing
from seedrl_jax.lab.planning import programs as programs_lib
from seedrl_jax.lab.planning import targets
from seedrl_jax.run import opening
from seedrl_jax.run import plan as plan_lib


class Bound(NamedTuple):
  """The least time of a program in seconds, by resource."""

  by_flops: float
  by_bytes: float
  by_operations: float

  @property
  def seconds(self) -> float:
    return max(self)

  @property
  def reason(self) -> str:
    return ('FLOPs', 'bytes', 'operations')[self.index(self.seconds)]

  def of_share(self, share: float) -> 'Bound':
    """Returns the bound for a share of the data, in as many operations."""
    return self._replace(
      by_flops=share * self.by_flops, by_bytes=share * self.by_bytes
    )


class Split(NamedTuple):
  """The ceilings of a split of the devices, in environment steps per second.

  Attributes:
    inference, training: numbers of devices.
    updates: per second.
    learning: steps that the training devices are done with.
    acting: steps that the inference devices act for.
    exact: whether its programs were compiled; else scaled from those that were,
      as if FLOPs and bytes were proportional to a device's unrolls.
  """

  inference: int
  training: int
  updates: float
  learning: float
  acting: float
  exact: bool

  @property
  def ratio(self) -> str:
    """The value of `topology.inference_to_training`."""
    return f'{self.inference}:{self.training}' if self.inference else 'shared'

  @property
  def label(self) -> str:
    """The ratio, with a star if it is scaled."""
    return self.ratio + ('' if self.exact else ' *')

  @property
  def steps(self) -> float:
    """Steps per second of the run; the hosts must supply as many."""
    if self.inference == 0:
      # One device takes turns.
      return 1 / (1 / self.learning + 1 / self.acting)
    return min(self.learning, self.acting)

  @property
  def limit(self) -> str:
    if self.inference == 0:
      return 'both'
    return 'training' if self.learning < self.acting else 'inference'


def bound(compiled: programs_lib.Compiled, device: targets.Device) -> Bound:
  """Returns the least time of one call on one device."""
  flops16 = compiled.flops - compiled.flops32
  return Bound(
    flops16 / device.flops + compiled.flops32 / device.flops32,
    compiled.traffic.size / device.bandwidth,
    compiled.traffic.operations * device.operation_seconds,
  )


def splits(
  run_plan: plan_lib.Plan,
  compiled: Sequence[programs_lib.Compiled],
  device: targets.Device,
) -> list[Split]:
  """Returns the ceilings of every split that the batch divides over."""
  topology = run_plan.topology
  count = len(topology.training)
  update = [
    (c.calls, bound(c, device))
    for c in compiled
    if c.name.startswith(programs_lib.UPDATE)
  ]
  act = max(
    (c for c in compiled if c.name.startswith(programs_lib.ACT)),
    key=lambda c: int(c.name.rpartition(' ')[2]),
  )
  size = int(act.name.rpartition(' ')[2])
  per_device = size / bound(act, device).seconds
  steps = ceilings.steps_per_update(run_plan.config)
  all_splits = []
  for inference, training in _pairs(run_plan):
    share = count / training
    updates = 1 / sum(n * b.of_share(share).seconds for n, b in update)
    all_splits.append(
      Split(
        inference,
        training,
        updates,
        steps * updates,
        per_device * max(1, inference),
        training == count,
      )
    )
  return all_splits


def _pairs(run_plan: plan_lib.Plan) -> Iterator[tuple[int, int]]:
  """Yields numbers of inference and training devices; 0 shares the only one."""
  topology, learner = run_plan.topology, run_plan.config.learner
  if topology.shared:
    yield 0, 1
    return
  total = len(topology.inference) + len(topology.training)
  for training in range(1, total):
    if run_plan.config.batch_size % (training * learner.micro_batches) == 0:
      yield total - training, training


class Plan(NamedTuple):
  """A split of a host's devices, limited by its environments.

  Attributes:
    env_steps: steps per second of environments that have all cores.
    cores: with which environments would not bind the split.
  """

  split: Split
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
  config.env.compiled = 'off'
  config.replay.backend = 'embedded'
  if config.replay.max_size is not None:
    # Nothing is stored.
    config.replay.max_size = 2 * config.batch_size
    config.replay.min_size = 1
  run_plan = plan_lib.make_plan(config)
  parts = opening.open_parts(run_plan, plan_lib.initial_state(run_plan))
  try:
    return acting.time_envs(run_plan, parts, windows)
  finally:
    parts.close()


def plans(
  splits: Iterable[Split], env: timing.Timing, cores: int
) -> list[Plan]:
  """Returns each split with environments on `cores` cores, best first.

  Of splits that environments bind, that is the one that could do most.
  """
  all_plans = [
    Plan(split, cores / env.cpu_seconds, split.steps * env.cpu_seconds)
    for split in splits
  ]
  return sorted(all_plans, key=lambda p: (p.steps, p.split.steps), reverse=True)


def plan_row(plan: Plan) -> tables.Row:
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
  """Returns a sentence with the split to use."""
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
