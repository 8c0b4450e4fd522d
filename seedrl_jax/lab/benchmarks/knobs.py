"""What may be changed for a run's speed, and how much each could gain."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import ml_collections

from seedrl_jax.envs import factory, registry
from seedrl_jax.lab.benchmarks import ceilings
from seedrl_jax.learner import topology as topology_lib
from seedrl_jax.networks import observations
from seedrl_jax.run import layout
from seedrl_jax.run import plan as plan_lib

# New values of a configuration, by dotted key.
Changes = Mapping[str, Any]

# Beside the stages of `Ceilings.resources`: time in which even the busiest
# resource is idle, or is others'.
_WAITING = 'waiting'
# A knob that could gain less, as a share of the time, is not tried.
_LEAST_GAIN = 0.05
# Splits of the devices to try, of those that should be best.
_NUM_SPLITS = 2


class Run(NamedTuple):
  """A run on this machine.

  Attributes:
    config: with the changes so far.
    topology: of the run before any change.
    processors: those that this process may use.
    acting, learning: steps per second of one inference device, and of one
      training device.
    has_images: whether the network is convolutional.
    in_jax: whether the environments are, which have no threads and all act in
      each call.
  """

  config: ml_collections.ConfigDict
  topology: topology_lib.Topology
  processors: Sequence[int]
  acting: float
  learning: float
  has_images: bool
  in_jax: bool = False

  @property
  def num_streams(self) -> int:
    per_device = self.config.topology.streams_per_device
    return per_device * len(self.topology.inference)

  @property
  def stream_sizes(self) -> tuple[int, int]:
    """A stream's environments, and how many a call has."""
    num_envs = self.config.env.num_envs // self.num_streams
    return num_envs, layout.inference_batch_size(self.config, num_envs)


def describe_run(
  config: ml_collections.ConfigDict,
  plan: plan_lib.Plan,
  timed: ceilings.Ceilings,
) -> Run:
  """Returns a run before any change, by the timings of its stages."""
  leaves = observations.read_leaves(config.network, plan.env_spec)
  return Run(
    config,
    plan.topology,
    sorted(os.sched_getaffinity(0)),
    timed.inference.median,
    timed.update.median / len(plan.topology.training),
    any(len(leaf.shape) == 3 for leaf in leaves),
    plan.device_env is not None,
  )


class Knob(NamedTuple):
  """A way to change a configuration.

  Attributes:
    relieves: stages that may need less time.
    propose: returns changes that leave learning as it is, the most promising
      first.
  """

  relieves: tuple[str, ...]
  propose: Callable[[Run], list[Changes]]


Resources = Sequence[Mapping[str, float]]


def promising(resources: Resources, rate: float) -> list[Knob]:
  """Returns the knobs that matter to a run, those that could gain most first.

  Args:
    resources: of its stages; see `Ceilings.resources`.
    rate: steps per second that it makes.
  """
  gains = {knob: _gain(knob, resources, rate) for knob in _KNOBS}
  useful = [knob for knob, gain in gains.items() if gain >= _LEAST_GAIN]
  return sorted(useful, key=lambda knob: -gains[knob])


def _gain(knob: Knob, resources: Resources, rate: float) -> float:
  """Returns the share of the time that a knob could save at most."""
  now = 1.0 if _WAITING in knob.relieves else _busy(resources, rate)
  return now - _busy(resources, rate, knob.relieves)


def _busy(
  resources: Resources, rate: float, relieved: Sequence[str] = ()
) -> float:
  """Returns how busy the busiest resource is without some stages."""
  return rate * max(
    sum(cost for stage, cost in r.items() if stage not in relieved)
    for r in resources
  )


def shares(resources: Resources, rate: float) -> dict[str, float]:
  """Returns the share of its resource's time that each stage needs."""
  costs: dict[str, float] = {}
  for resource in resources:
    for stage, cost in resource.items():
      costs[stage] = max(costs.get(stage, 0.0), cost * rate)
  return costs | {_WAITING: max(0.0, 1.0 - _busy(resources, rate))}


def _batch_size(run: Run) -> list[Changes]:
  # Unrolls should begin together.
  if run.in_jax or run.config.learner.max_lag is not None:
    return []
  num_envs, size = run.stream_sizes
  return _values('env.batch_size', size, [min(2 * size, num_envs), size // 2])


def _values(key: str, now: int, others: Sequence[int]) -> list[Any]:
  """Returns changes of a key to positive values other than `now`."""
  return [{key: x} for x in dict.fromkeys(others) if x > 0 and x != now]


def _streams(run: Run) -> list[Changes]:
  # One stream's unrolls would be too old while another's are trained on.
  if run.config.learner.max_lag is not None:
    return []
  key = 'topology.streams_per_device'
  count = run.config.topology.streams_per_device
  size = run.config.env.batch_size
  changes = _values(key, count, [2 * count, count // 2])
  # A size of 0 follows the number of environments.
  for change in changes if size else []:
    change['env.batch_size'] = max(1, size * count // change[key])
  return changes


def _threads(run: Run) -> list[Changes]:
  """Threads of EnvPool, or processes of Gymnasium's environments."""
  if run.in_jax:
    return []
  env, streams = run.config.env, run.num_streams
  now, key = env.num_threads, 'env.num_threads'
  if factory.is_gymnasium(env):
    now, key = env.processes, 'env.processes'
  elif not now:
    now = registry.default_num_threads(env.id, *run.stream_sizes, streams)
  cores = len(run.processors)
  others = [2 * now, math.ceil(cores / streams), now // 2]
  return _values(key, now, [x for x in others if x <= cores])


def _pinning(run: Run) -> list[Changes]:
  """Inference threads on the first processors, EnvPool's on the others."""
  if run.in_jax:
    return []
  keys = 'topology.inference_affinity_offset', 'env.thread_affinity_offset'
  if run.config.topology.inference_affinity_offset >= 0:
    return [dict.fromkeys(keys, -1)]
  first, last = run.processors[0], run.processors[-1]
  others = first + run.num_streams
  has_gaps = last - first >= len(run.processors)
  if has_gaps or others > last or factory.is_gymnasium(run.config.env):
    return []
  return [dict(zip(keys, (first, others), strict=True))]


def _micro_batches(run: Run) -> list[Changes]:
  if not run.has_images:
    return []
  now = run.config.learner.micro_batches
  return _values('learner.micro_batches', now, [4 * now, now // 4])


def _split(run: Run) -> list[Changes]:
  """Splits of the devices that should be faster than the first run's."""
  inference, training = run.topology.inference, run.topology.training
  if run.topology.shared:
    return []

  def speed(acting: int, learning: int) -> float:
    return min(acting * run.acting, learning * run.learning)

  now, total = speed(len(inference), len(training)), len(inference + training)
  pairs = [(i, total - i) for i in range(1, total) if speed(i, total - i) > now]
  pairs.sort(key=lambda pair: -speed(*pair))
  return [
    {'topology.inference_to_training': f'{i}:{t}'}
    for i, t in pairs[:_NUM_SPLITS]
  ]


def _store(run: Run) -> list[Changes]:
  """The embedded store instead of Reverb."""
  replay = run.config.replay
  is_reverb = replay.backend == 'reverb' or (
    replay.backend == 'auto'
    and replay.sampler != 'fifo'
    and run.config.unroll_length > 1
  )
  if not is_reverb or replay.address:
    return []
  return [{'replay.backend': 'embedded'}]


# Of those that could gain as much as another, the first is tried first.
_KNOBS = (
  Knob(('inference', _WAITING), _streams),
  Knob(('inference', _WAITING), _batch_size),
  Knob(('environments', _WAITING), _threads),
  Knob((_WAITING,), _pinning),
  Knob(('inference', 'update'), _split),
  Knob(('update',), _micro_batches),
  # A server's time is not this process's.
  Knob(('store', _WAITING), _store),
)
