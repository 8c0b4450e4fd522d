"""What each stage of a case does alone, with nothing else at work."""

from typing import Any, NamedTuple

import jax
import numpy as np

from seedrl_jax import types
from seedrl_jax.benchmarks import timing
from seedrl_jax.inference import device_step, packing
from seedrl_jax.replay import table_configs
from seedrl_jax.run import build as build_lib


class Ceilings(NamedTuple):
  """Timings of a case's stages, in environment steps.

  Attributes:
    env: environments with random actions.
    inference: the act step on the device, by batch size.
    batch_size: the batch size that the case uses.
    update: the update of a batch.
    store: a writer and a sampler in turn.
  """

  env: timing.Timing
  inference: dict[int, timing.Timing]
  batch_size: int
  update: timing.Timing
  store: timing.Timing

  def ideal(self, topology: Any) -> float:
    """Returns the steps per second of a run that wastes nothing.

    What stages cost one resource adds up, and the busiest resource sets the
    pace. On the CPU all stages share the cores; an accelerator's stages cost
    it their time alone.
    """
    acting = self.inference[self.batch_size]
    host = self.env.cpu_seconds + self.store.cpu_seconds
    inference, training = topology.inference, topology.training
    if training[0].platform == 'cpu':
      host += acting.cpu_seconds + self.update.cpu_seconds
      return timing.cores() / host
    costs = [host / timing.cores(), 1.0 / self.env.median]
    acting_cost = 1.0 / acting.median / len(inference)
    update_cost = 1.0 / self.update.median
    if topology.shared:
      costs.append(acting_cost + update_cost)
    else:
      costs += [acting_cost, update_cost]
    return 1.0 / max(costs)


def measure(
  config: Any,
  streams: build_lib.MakeStream | None,
  windows: int,
  seconds: float,
) -> Ceilings:
  """Measures every stage of a configuration.

  Args:
    config: the run's configuration.
    streams: see `builder.build`.
    windows: of which medians are taken.
    seconds: length of a window.
  """
  parts = build_lib.build(config, restore=lambda state: state, streams=streams)
  try:
    worker = parts.workers[0]
    size = worker.stream.batch_size
    sizes = sorted({1, 8, 32, 128, size})
    return Ceilings(
      env=_env(parts, windows, seconds),
      inference={n: _inference(parts, n, windows, seconds) for n in sizes},
      batch_size=size,
      update=_update(config, parts, windows, seconds),
      store=_store(config, parts, windows, seconds),
    )
  finally:
    parts.close()


def _env(parts: build_lib.Parts, windows: int, seconds: float) -> timing.Timing:
  stream = parts.workers[0].stream
  rng = np.random.default_rng(0)
  actions = parts.env_spec.action.sample(rng, 64, stream.batch_size)
  calls = max(1, 2048 // stream.batch_size)

  def work() -> int:
    for i in range(calls):
      env_id = stream.recv().env_id
      stream.send(actions[i % 64, : len(env_id)], env_id)
    return calls * stream.batch_size

  return timing.measure(work, windows, seconds)


def _inference(
  parts: build_lib.Parts, size: int, windows: int, seconds: float
) -> timing.Timing:
  device = parts.topology.inference[0]
  step = device_step.DeviceStep(
    parts.agent, parts.env_spec, device, size, jax.random.PRNGKey(0)
  )
  _, params = parts.publisher.latest(device)
  observation = _random_observation(parts.env_spec.observation, (size,))
  header = packing.make_header(size, 0, parts.env_spec.action)
  header[:, 0] = np.arange(size)
  calls = max(1, 512 // size)

  def work() -> int:
    for _ in range(calls):
      packed, _ = step(params, observation, header)
      np.asarray(packed)
    return calls * size

  return timing.measure(work, windows, seconds)


def _random_observation(spec: types.Nest, leading: tuple[int, ...]) -> Any:
  rng = np.random.default_rng(0)

  def random(s: types.ArraySpec) -> np.ndarray:
    shape = (*leading, *s.shape)
    if s.dtype == np.uint8:
      return rng.integers(0, 256, shape, np.uint8)
    return rng.uniform(size=shape).astype(s.dtype)

  return jax.tree.map(
    random, spec, is_leaf=lambda s: isinstance(s, types.ArraySpec)
  )


def _update(
  config: Any, parts: build_lib.Parts, windows: int, seconds: float
) -> timing.Timing:
  steps = config.batch_size * config.unroll_length
  state = parts.updater.replicate(parts.learner.state())

  def fill(piece: types.Batch) -> types.Batch:
    unroll = piece.unroll
    shape = unroll.steps.reward.shape
    recorded = unroll.steps._replace(
      observation=_random_observation(parts.env_spec.observation, shape),
      step_type=np.full(shape, types.StepType.MID, np.uint8),
      discount=np.ones(shape, np.float32),
    )
    return piece._replace(unroll=unroll._replace(steps=recorded))

  pieces = [fill(piece) for piece in parts.blank_batch]

  def work() -> int:
    nonlocal state
    state, output = parts.updater(state, parts.updater.shard(pieces), 0.0)
    jax.block_until_ready(output)
    return steps

  return timing.measure(work, windows, seconds)


def _store(
  config: Any, parts: build_lib.Parts, windows: int, seconds: float
) -> timing.Timing:
  writer = parts.store.writer(table_configs.TABLE)
  devices = len(parts.topology.training)
  sampler = parts.store.sampler(table_configs.TABLE, config.batch_size, devices)
  steps = config.batch_size * config.unroll_length

  def work() -> int:
    for _ in range(20):
      for _ in range(devices):
        writer.insert(writer.allocate())
      sampler.sample().release()
    return 20 * steps

  return timing.measure(work, windows, seconds)
