"""What the compiled programs of a run allow at most.

A device needs at least the time of its FLOPs at its peak, and of its memory
traffic at its bandwidth. Each operation takes a while whatever its size, which
is estimated. Real programs are slower: these are bounds, not measurements.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from seedrl_jax.lab.benchmarks import ceilings
from seedrl_jax.lab.planning import programs as programs_lib
from seedrl_jax.lab.planning import targets
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
  def label(self) -> str:
    """`topology.inference_to_training`, with a star if it is scaled."""
    ratio = f'{self.inference}:{self.training}' if self.inference else 'shared'
    return ratio + ('' if self.exact else ' *')

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
