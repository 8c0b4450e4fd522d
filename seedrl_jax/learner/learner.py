"""The learner: takes a batch, updates, publishes, releases the batch.

Results of an update are read after the next dispatch, so that the training
cores do not wait for the host.
"""

import collections
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from seedrl_jax import types
from seedrl_jax.agents import base
from seedrl_jax.learner import prefetch as prefetch_lib
from seedrl_jax.learner import update as update_lib

_CLIPPED = 'health/clipped_share'
# Number of recent updates that health/clipped_share averages over.
_CLIPPED_UPDATES = 100
# At most this many observations per measurement, but at least one unroll.
_MAX_OBSERVATIONS = 1024
# Measurements take at most this share of the time.
_MAX_SHARE = 0.01


class NonFiniteError(types.Explained, RuntimeError):
  """A loss, gradient or step was not finite; the state before it was kept."""


@dataclasses.dataclass
class LearnerCounters:
  """Progress counters; written by the learner's thread, read by any."""

  updates: int = 0  # finished and finite, over all runs of the work directory
  # Policy lag is in batches, though versions count optimiser steps.
  lag_sum: float = 0.0  # of the updates' mean policy lags
  lag_max: int = 0  # of any step since `take_lag_max`
  dropped_sum: float = 0.0  # of the updates' dropped shares of unrolls
  lag_updates: int = 0  # number of updates in these sums


class _Pending(NamedTuple):
  number: int
  item: prefetch_lib.Prefetched
  output: update_lib.Output
  params: base.Params


class ParameterPublisher:
  """Keeps the newest parameters on every inference device.

  The learner's thread publishes; inference threads read without a lock.
  """

  def __init__(self, devices: Sequence[jax.Device]):
    self._latest: dict[jax.Device, tuple[int, base.Params]] = {}
    self._devices = tuple(devices)

  def publish(self, version: int, params: base.Params) -> None:
    """Copies parameters to the inference devices and makes them the newest.

    `params` are on one training device, in buffers that no update donates.
    """
    source = jax.tree.leaves(params)[0].devices()
    copies = [
      params if source == {device} else jax.device_put(params, device)
      for device in self._devices
    ]
    for device, copy in zip(self._devices, copies, strict=True):
      # So that inference does not wait for the copy.
      jax.block_until_ready(copy)
      self._latest[device] = (version, copy)

  def latest(self, device: jax.Device) -> tuple[int, base.Params]:
    """Returns the newest version and its parameters on `device`."""
    return self._latest[device]


class Inspector:
  """Runs `Agent.measure` on request, for at most 1 % of the time.

  One thread measures; another one requests measurements and takes them.
  """

  def __init__(
    self, measure: Callable[..., dict[str, jax.Array]], pieces: int = 1
  ):
    """`measure` is `Agent.measure`, of at most one of a batch's `pieces`."""

    def run(params: base.Params, batch: types.Batch) -> dict[str, jax.Array]:
      unroll = jax.tree.map(lambda x: x[0], batch).unroll
      length, width = unroll.steps.reward.shape
      count = max(1, min(width // pieces, _MAX_OBSERVATIONS // length))
      steps = jax.tree.map(lambda x: x[:, :count], unroll.steps)
      core = jax.tree.map(lambda x: x[:count], unroll.initial_core)
      return measure(params, types.agent_input(steps), core)

    self._run = jax.jit(run)
    self._is_requested = True
    self._next_time = 0.0
    self._metrics: dict[str, float] = {}

  def compile(self, params: base.Params, batch: types.Batch) -> None:
    """Compiles the measurement."""
    jax.block_until_ready(self._run(params, batch))

  def take(self) -> dict[str, float]:
    """Returns the metrics since the last call, {} if there are none.

    Requests a measurement on the next batch.
    """
    metrics, self._metrics = self._metrics, {}
    self._is_requested = True
    return metrics

  def maybe_measure(self, params: base.Params, batch: types.Batch) -> None:
    """Measures if requested and if the time limit allows it.

    Args:
      params: acting parameters after the update on `batch`, on one device.
      batch: its first shard has a leading axis of size 1 and is on that device.
    """
    start = time.perf_counter()
    if not self._is_requested or start < self._next_time:
      return
    self._is_requested = False
    # Cut only now: for each update it would cost as much as a small network.
    metrics = jax.device_get(self._run(params, update_lib.first_shard(batch)))
    self._metrics = {name: float(value) for name, value in metrics.items()}
    end = time.perf_counter()
    self._next_time = end + (end - start) / _MAX_SHARE


class Learner:
  """Trains on prefetched batches, in one thread."""

  def __init__(
    self,
    updater: update_lib.Updater,
    state: update_lib.LearnerState,
    publisher: ParameterPublisher,
    publish_period: int = 1,
    on_finished: Callable[[float], None] | None = None,
    is_reporting: bool = True,
  ):
    """Publishes the parameters of `state`, which has no device axis.

    Calls `on_finished` after each batch whose parameters are published, with
    the share that was dropped. `is_reporting`: whether `metrics` is used.
    """
    self._updater = updater
    self._publisher = publisher
    self._publish_period = publish_period
    self._on_finished = on_finished
    self._dispatched = int(state.step)
    self._state = updater.replicate(state)
    self._pending: collections.deque[_Pending] = collections.deque()
    # Of the last updates; on the device until metrics().
    self._metrics: collections.deque[update_lib.Metrics] = collections.deque(
      maxlen=_CLIPPED_UPDATES
    )
    self._inspector: Inspector | None = None
    agent = updater.agent
    if is_reporting and agent.measure is not None:
      pieces = 1 if agent.trainer is None else agent.trainer.micro_batches
      self._inspector = Inspector(agent.measure, pieces)
    self.counters = LearnerCounters(updates=self._dispatched)
    params = updater.agent.acting_params(state.agent)
    publisher.publish(
      self._dispatched, jax.device_put(params, updater.local_devices[0])
    )

  def compile(self, blank: Sequence[types.Batch]) -> None:
    """Runs the update on zeros, one `Batch` per local device."""
    batch = self._updater.shard(blank)
    params = self._updater.compile(self._state, batch)
    if self._inspector is not None:
      self._inspector.compile(*update_lib.first_shard((params, batch)))

  def step(self, item: prefetch_lib.Prefetched, progress: float) -> None:
    """Dispatches an update at `progress` in [0, 1]; finishes earlier ones.

    Raises NonFiniteError if an earlier update was not finite; so do all methods
    that wait for updates.
    """
    counters = self.counters
    # A replay saved just after the parameters may hold steps of later versions.
    per_batch = self._updater.agent.updates_per_batch
    lag_mean = (self._dispatched - item.version_mean) / per_batch
    counters.lag_sum += max(0.0, lag_mean)
    lag_max = (self._dispatched - item.version_min) // per_batch
    counters.lag_max = max(counters.lag_max, lag_max)
    counters.dropped_sum += item.dropped_share
    counters.lag_updates += 1
    result = self._updater(self._state, item.batch, progress)
    self._state = result.state
    self._dispatched += result.num_steps
    self._pending.append(
      _Pending(self._dispatched, item, result.output, result.params)
    )
    while len(self._pending) > 1 or (self._pending and self._is_done()):
      self._finish_oldest()

  def flush(self) -> None:
    """Waits for all dispatched updates."""
    while self._pending:
      self._finish_oldest()

  def state(self) -> update_lib.LearnerState:
    """Flushes, and returns the state on the host."""
    self.flush()
    state = self._updater.host_state(self._state)
    # Others may have updated it, too.
    self.counters.updates = int(state.step)
    return state

  def fingerprints(self) -> list[tuple[float, ...]]:
    """Flushes, and returns `Updater.fingerprints` of the state."""
    self.flush()
    return self._updater.fingerprints(self._state)

  def metrics(self) -> dict[str, float]:
    """Returns the metrics of the last finished update.

    Two kinds are not of that update:

    * `health/clipped_share`: mean over the last `_CLIPPED_UPDATES` updates.
    * Metrics of `Agent.measure`: of an update since the last call; missing if
      there was no measurement, see `Inspector`.
    """
    recent = list(self._metrics)
    values = recent[-1].fetch() if recent else {}
    if _CLIPPED in values:
      column = recent[-1].names.index(_CLIPPED)
      rows = jax.device_get(update_lib.first_shard([x.values for x in recent]))
      values[_CLIPPED] = float(np.mean([row[column] for row in rows]))
    if self._inspector is not None:
      values |= self._inspector.take()
    return values

  def take_lag_max(self) -> int:
    """Returns the largest policy lag since the last call."""
    lag, self.counters.lag_max = self.counters.lag_max, 0
    return lag

  def _is_done(self) -> bool:
    finite: Any = self._pending[0].output.finite
    return finite.is_ready()

  def _finish_oldest(self) -> None:
    """Publishes an update's parameters and releases its batch."""
    done = self._pending.popleft()
    output = done.output
    self._metrics.append(output.metrics)
    if not jax.device_get(output.finite.addressable_data(0)):
      values = output.metrics.fetch().items()
      bad = [f'{name} {x}' for name, x in values if not np.isfinite(x)]
      names = f' ({", ".join(bad)})' if bad else ''
      raise NonFiniteError(
        f'Update {done.number} is not finite{names}; the parameters '
        'before it were kept: lower the learning rate (of the built-in agents, '
        '--config.optimizer.learning_rate) or look at rewards and '
        'observations.'
      )
    params = update_lib.first_shard(done.params)
    # Whether the batch's updates enter a new period.
    period = self._publish_period
    if done.number // period > self.counters.updates // period:
      self._publisher.publish(done.number, params)
    if self._on_finished is not None:
      self._on_finished(done.item.dropped_share)
    if output.priorities is not None:
      done.item.sample.update_priorities(
        update_lib.local_rows(output.priorities)
      )
    if self._inspector is not None:
      self._inspector.maybe_measure(params, done.item.batch)
    done.item.sample.release()
    self.counters.updates = done.number
