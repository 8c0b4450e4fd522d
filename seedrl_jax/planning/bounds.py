"""What the compiled programs of a run allow at most.

A device needs at least the time of its FLOPs at its peak, and of its memory
traffic at its bandwidth. Real programs are slower: these are bounds, not
measurements.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from seedrl_jax.benchmarks import ceilings
from seedrl_jax.planning import programs as programs_lib
from seedrl_jax.planning import targets
from seedrl_jax.run import build


class Bound(NamedTuple):
  """The least time of a program, in seconds, by what it needs."""

  by_flops: float
  by_bytes: float

  @property
  def seconds(self) -> float:
    return max(self.by_flops, self.by_bytes)

  @property
  def reason(self) -> str:
    return 'FLOPs' if self.by_flops > self.by_bytes else 'bytes'


class Split(NamedTuple):
  """The ceilings of a split of the devices, in environment steps per second.

  Attributes:
    inference, training: numbers of devices.
    updates: per second.
    learning: steps that the training devices are done with.
    acting: steps that the inference devices act for.
    exact: whether its programs were compiled; else scaled from those that were,
      as if an update's time were proportional to a device's unrolls.
  """

  inference: int
  training: int
  updates: float
  learning: float
  acting: float
  exact: bool

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
  return Bound(
    compiled.flops / device.flops, compiled.traffic.size / device.bandwidth
  )


def splits(
  setup: build.Setup,
  compiled: Sequence[programs_lib.Compiled],
  device: targets.Device,
) -> list[Split]:
  """Returns the ceilings of every split that the batch divides over."""
  topology = setup.topology
  count = len(topology.training)
  update = sum(
    c.calls * bound(c, device).seconds
    for c in compiled
    if c.name.startswith(programs_lib.UPDATE)
  )
  act = max(
    (c for c in compiled if c.name.startswith(programs_lib.ACT)),
    key=lambda c: int(c.name.rpartition(' ')[2]),
  )
  size = int(act.name.rpartition(' ')[2])
  per_device = size / bound(act, device).seconds
  due = ceilings.steps_per_update(setup.config)
  found = []
  for inference, training in _pairs(setup):
    updates = training / count / update
    found.append(
      Split(
        inference,
        training,
        updates,
        due * updates,
        per_device * max(1, inference),
        training == count,
      )
    )
  return found


def _pairs(setup: build.Setup) -> Iterator[tuple[int, int]]:
  """Yields numbers of inference and training devices; 0 shares the only one."""
  topology, config = setup.topology, setup.config
  if topology.shared:
    yield 0, 1
    return
  total = len(topology.inference) + len(topology.training)
  for training in range(1, total):
    if config.batch_size % (training * config.learner.micro_batches) == 0:
      yield total - training, training
