"""Times each stage of a case alone."""

import contextlib
from typing import NamedTuple

import jax
import ml_collections
import numpy as np

from seedrl_jax.agents import base as agents
from seedrl_jax.lab import tables
from seedrl_jax.lab.benchmarks import acting, environments, fused, timing
from seedrl_jax.learner import topology as topology_lib
from seedrl_jax.replay import base as replay
from seedrl_jax.replay import table_configs
from seedrl_jax.run import opening
from seedrl_jax.run import plan as plan_lib
from seedrl_jax.runtime import process, threads

_JOIN_SECONDS = 60.0


class Ceilings(NamedTuple):
  """Timings of a case's stages, in environment steps.

  Attributes:
    env: environments with random actions.
    env_and_inference: environments with the network's actions.
    inference: the act step on the device.
    batch_size: of inference.
    update: the update of a batch.
    publish: publishing an update's parameters.
    store: insertion and sampling in the configured ratio; None if unrolls stay
      on the devices.
    in_jax: whether the environments are part of the act step.
    fused: environments, acting and training as one program; None if there is
      none.
  """

  env: timing.Timing
  env_and_inference: timing.Timing
  inference: timing.Timing
  batch_size: int
  update: timing.Timing
  publish: timing.Timing
  store: timing.Timing | None
  in_jax: bool = False
  fused: timing.Timing | None = None

  def rows(self) -> list[tables.Row]:
    """Returns table rows."""
    stages = {
      'environments': self.env,
      'environments + inference': self.env_and_inference,
      f'inference, batch {self.batch_size}': self.inference,
      'update': self.update,
      'publishing': self.publish,
      'store': self.store,
      'all in one program': self.fused,
    }
    return [
      {
        'stage alone': name,
        'steps/s, median (min–max)': stage.text(),
        'host µs per step': f'{stage.cpu_seconds * 1e6:.3f}',
        'steal': f'{stage.stolen:.0%}',
      }
      for name, stage in stages.items()
      if stage is not None
    ]

  def ideal(self, topology: topology_lib.Topology) -> float:
    """Returns the steps per second if the busiest resource is never idle."""
    if self.fused is not None and len(topology.training) == 1:
      return self.fused.median
    return 1.0 / max(sum(r.values()) for r in self.resources(topology))

  def resources(
    self, topology: topology_lib.Topology
  ) -> list[dict[str, float]]:
    """Returns the seconds of each resource that stages need for a step.

    On the CPU all stages share the cores; an accelerator's stages use only its
    own time.
    """
    cores = len(process.PROCESSORS)
    host = {}
    if not self.in_jax:
      host['environments'] = self.env.cpu_seconds / cores
    if self.store is not None:
      host['store'] = self.store.cpu_seconds / cores
    if topology.training[0].platform == 'cpu':
      host['inference'] = self.inference.cpu_seconds / cores
      host['update'] = self.update.cpu_seconds / cores
      host['publishing'] = self.publish.cpu_seconds / cores
      return [host]
    acting = {
      'inference': 1.0 / self.inference.median / len(topology.inference)
    }
    learning = {
      'update': 1.0 / self.update.median,
      'publishing': 1.0 / self.publish.median,
    }
    devices = [acting | learning] if topology.shared else [acting, learning]
    if not self.in_jax:
      devices.append({'environments': 1.0 / self.env.median})
    return [host, *devices]


def steps_per_update(config: ml_collections.ConfigDict) -> float:
  """Returns the environment steps that one update is due for.

  A replay that keeps no ratio counts as if it trained on each step once.
  """
  trained = config.batch_size * config.unroll_length
  return trained / (config.replay.samples_per_insert or 1.0)


def measure(
  config: ml_collections.ConfigDict,
  streams: opening.MakeStream | None,
  windows: timing.Windows,
) -> Ceilings:
  """Measures every stage of a run; for `streams` see `Opener`."""
  plan = plan_lib.make_plan(config)
  state = plan.initial_state()
  parts = opening.Opener(plan, state, streams).open()
  with contextlib.closing(parts):
    if plan.device_env is not None and streams is None:
      return _in_jax(config, plan, parts, windows)
    return Ceilings(
      env=acting.time_envs(plan, parts, windows),
      env_and_inference=acting.time_with_inference(plan, parts, windows),
      inference=_inference(parts, windows),
      batch_size=plan.shares[0].batch_size,
      update=_update(config, parts, windows),
      publish=_publish(config, parts, windows),
      # Last: closes the store.
      store=_store(config, parts, windows),
    )


def _in_jax(
  config: ml_collections.ConfigDict,
  plan: plan_lib.Plan,
  parts: opening.Parts,
  windows: timing.Windows,
) -> Ceilings:
  """Measures the stages of a run whose environments are in JAX."""
  acting_time = fused.time_with_inference(plan, windows)
  in_pieces = isinstance(plan.agent.update, agents.UpdateInPieces)
  can_fuse = plan.cuts_blocks and not in_pieces
  return Ceilings(
    env=fused.time_envs(plan, windows),
    env_and_inference=acting_time,
    inference=acting_time,
    batch_size=len(plan.shares[0].global_env_id),
    update=_update(config, parts, windows),
    publish=_publish(config, parts, windows),
    store=None if plan.on_device else _store(config, parts, windows),
    in_jax=True,
    fused=fused.time_with_training(plan, windows) if can_fuse else None,
  )


def _inference(parts: opening.Parts, windows: timing.Windows) -> timing.Timing:
  (worker, *_) = acting.stream_workers(parts)
  size, step = worker.stream.batch_size, worker.device_step
  _, params = parts.publisher.latest(parts.plan.topology.inference[0])
  observation = environments.random_observation(
    np.random.default_rng(0), parts.plan.env_spec.observation, (size,)
  )
  header = step.make_header(size)
  header[:, 0] = np.arange(size)
  calls = max(1, 512 // size)

  def work() -> int:
    for _ in range(calls):
      packed, _ = step(params, observation, header)
      np.asarray(packed)
    return calls * size

  return timing.measure(work, windows)


def _update(
  config: ml_collections.ConfigDict,
  parts: opening.Parts,
  windows: timing.Windows,
) -> timing.Timing:
  steps = steps_per_update(config)
  state = parts.plan.updater.replicate(parts.learner.state())

  def work() -> float:
    nonlocal state
    batch = parts.plan.updater.shard(parts.plan.blank_batch())
    state, output, *_ = parts.plan.updater(state, batch, 0.0)
    jax.block_until_ready(output)
    return steps

  return timing.measure(work, windows)


def _publish(
  config: ml_collections.ConfigDict,
  parts: opening.Parts,
  windows: timing.Windows,
) -> timing.Timing:
  steps = steps_per_update(config) * config.learner.publish_period
  params = jax.device_put(
    parts.plan.agent.acting_params(parts.learner.state().agent),
    parts.plan.updater.local_devices[0],
  )

  def work() -> float:
    parts.publisher.publish(0, params)
    return steps

  return timing.measure(work, windows)


def _store(
  config: ml_collections.ConfigDict,
  parts: opening.Parts,
  windows: timing.Windows,
) -> timing.Timing:
  """Times sampling while a writer inserts as fast as the table's rules allow.

  Closes the store.
  """
  table = parts.store.table(table_configs.TABLE)
  sampler = table.sampler(config.batch_size, len(parts.plan.topology.training))
  steps = steps_per_update(config)
  group = threads.ThreadGroup(ends=(replay.StoreClosed,))
  group.on_stop(parts.store.interrupt)

  def write() -> None:
    while True:
      table.insert(table.allocate())

  def work() -> float:
    for _ in range(20):
      sampler.sample().release()
    return 20 * steps

  group.start('bench-writer', write)
  try:
    return timing.measure(work, windows)
  finally:
    group.stop()
    group.join(_JOIN_SECONDS)
