"""The tables of a store on a Reverb server."""

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from seedrl_jax.replay import base, blocks, table_configs
from seedrl_jax.replay.reverb.client import (
  client_rate_limiter,
  connection,
  errors,
  insert_lane,
  unroll_items,
)
from seedrl_jax.replay.reverb.client import priorities as priorities_lib
from seedrl_jax.replay.reverb.client import sampler as sampler_lib
from seedrl_jax.replay.reverb.proto import reverb_pb2

# Batches that a sampler draws ahead.
_AHEAD = 1
# Parallel streams of a replay's sampler.
_REPLAY_STREAMS = 2
# Seconds that a draw from a filling table waits for inserts in flight.
_SETTLE_SECONDS = 1.0


class Shared(NamedTuple):
  """What a store's tables share; `mapper` is of `unroll_items.Workers`."""

  link: connection.Connection
  layout: blocks.UnrollLayout
  mapper: unroll_items.Mapper
  on_wait: Callable[[], None]


class ReverbTable(base.Table):
  """A table on a server; threads start with the first writer or sampler."""

  def __init__(
    self,
    shared: Shared,
    pool: blocks.BlockPool,
    limiter: client_rate_limiter.ClientRateLimiter,
    encoder: unroll_items.Encoder,
    unrolls_per_item: int,
  ):
    """Assumes an empty table; the server's items are `unrolls_per_item`."""
    self.config = limiter.config
    self.limiter = limiter
    self._shared = shared
    self._pool = pool
    self._encoder = encoder
    self._unit = unrolls_per_item
    self._lock = threading.Lock()
    # Prevents a count from before a reset from being used after it.
    self._counting = threading.Lock()
    self._interrupted = False
    self._lane: insert_lane.InsertLane | None = None
    self._samplers: list[sampler_lib.Sampler] = []
    # See `ClientRateLimiter.info`.
    self._counted: tuple[int, int] | None = None

  def allocate(self) -> base.Block:
    return self._pool.take()

  def insert(
    self, block: base.Block, priorities: np.ndarray | None = None
  ) -> None:
    checked = base.check_priorities(priorities, block.width)
    self._insert_lane().insert(block, checked)

  @property
  def bytes_sent(self) -> int:
    """Bytes that its writers have sent so far."""
    return self._lane.bytes_sent if self._lane is not None else 0

  def flush(self, timeout: float | None = None) -> None:
    """Waits until the server has all earlier inserts and updates.

    After `timeout` seconds, inserts that the table's rules do not admit stay in
    flight. Raises ReverbError if the server is lost for good.
    """
    if self._lane is not None:
      # What the server cannot take now stays in flight.
      with contextlib.suppress(base.RateLimited):
        self._lane.flush(timeout)

  def info(self) -> base.TableInfo:
    """Returns the state, with the server's last known size."""
    return self.limiter.info(self._counted)

  def note_size(self, size: int, acknowledged: int) -> None:
    """Notes the server's size; see `ClientRateLimiter.info`."""
    self._counted = size * self._unit, acknowledged

  def reset(self, timeout: float | None = None) -> None:
    """Removes everything and sets the counts to zero; see `flush`."""
    self.flush(timeout)
    with self._counting:
      self._shared.link.reset(self.config.name)
      self.limiter.restart(0, 0, 0, 0)

  def restart(self, info: reverb_pb2.TableInfo) -> None:
    """Takes over the counts of a server that has just begun."""
    with self._lock:
      undrawn = sum(sampler.undrawn for sampler in self._samplers)
    counts = self._in_unrolls(info)
    self.limiter.restart(*counts, undrawn=undrawn * self._unit)

  def correct(self) -> bool:
    """Asks the server; returns whether the counts needed correction."""
    with self._counting:
      version = self.limiter.version
      try:
        info = self._shared.link.peek()[self.config.name]
      except (errors.ReverbError, base.StoreClosed):
        # Callers that use the server itself raise this.
        return False
      inserts, samples, size = self._in_unrolls(info)
      if version is None:
        version = self.limiter.stalled_version(inserts, samples)
        if version is None:
          return False
      return self.limiter.correct(inserts, samples, size, version)

  def _in_unrolls(self, info: reverb_pb2.TableInfo) -> tuple[int, int, int]:
    """Returns the server's inserts, samples and size, in unrolls."""
    limiter = info.rate_limiter_info
    return (
      limiter.insert_stats.completed * self._unit,
      limiter.sample_stats.completed * self._unit,
      info.current_size * self._unit,
    )

  def interrupt(self) -> None:
    """See `TrajectoryStore`; what was inserted is still sent."""
    with self._lock:
      self._interrupted = True
    self.limiter.close()
    # Not their threads: one may be looking for a lost server.
    for sampler in self._samplers:
      sampler.interrupt()
    if self._lane is not None:
      self._lane.interrupt()

  def close(self) -> None:
    """Ends the threads; the connection is closed already."""
    for sampler in self._samplers:
      sampler.close()
    if self._lane is not None:
      self._lane.close()

  def _insert_lane(self) -> insert_lane.InsertLane:
    if self._lane is None:
      with self._lock:
        self._check_open()
        if self._lane is None:
          self._lane = insert_lane.InsertLane(
            self._shared.link,
            self.limiter,
            self._encoder,
            self._shared.mapper,
            self._pool.give_back,
          )
    return self._lane

  def _add_sampler(
    self,
    streams: sampler_lib.SampleStreams,
    decoder: unroll_items.Decoder,
    before_request: Callable[[], None],
  ) -> sampler_lib.Sampler:
    made = sampler_lib.Sampler(
      streams, self.limiter, decoder, _AHEAD, before_request
    )
    with self._lock:
      self._samplers.append(made)
    return made

  def _check_open(self) -> None:
    if self._interrupted:
      raise base.StoreClosed('The store was closed.')


class ReverbQueue(ReverbTable, base.Queue):
  """A queue on a server; an item is a whole block."""

  def __init__(
    self,
    config: table_configs.QueueConfig,
    shared: Shared,
    pool: blocks.BlockPool,
  ):
    limiter = client_rate_limiter.ClientQueueLimiter(config, shared.on_wait)
    encoder = unroll_items.BlockEncoder(shared.layout, config.name)
    super().__init__(shared, pool, limiter, encoder, pool.width)

  def sampler(
    self, batch_size: int, num_blocks: int | None = None
  ) -> base.TrajectorySampler:
    count = self.config.num_blocks(batch_size, num_blocks, self._pool.width)
    shared = self._shared
    # Several streams would not keep the order.
    streams = sampler_lib.SampleStreams(
      shared.link, self.config.name, on_arrival=self._on_arrival
    )
    decoder = unroll_items.BlockDecoder(
      shared.layout, batch_size, count, shared.mapper
    )
    return self._add_sampler(streams, decoder, lambda: None)

  def _on_arrival(self, keys: Sequence[int]) -> None:
    """Acknowledges sampled items, so that none is sent again after a loss."""
    if self._lane is not None:
      self._lane.arrived(keys)


class ReverbReplay(ReverbTable, base.Replay):
  """A replay on a server; an item is one unroll."""

  config: table_configs.ReplayConfig

  def __init__(
    self,
    config: table_configs.ReplayConfig,
    shared: Shared,
    pool: blocks.BlockPool,
  ):
    self._limiter = client_rate_limiter.ClientReplayLimiter(
      config, pool.width, shared.on_wait
    )
    encoder = unroll_items.UnrollEncoder(shared.layout, config.name)
    super().__init__(shared, pool, self._limiter, encoder, 1)
    self._updater: priorities_lib.PriorityUpdater | None = None
    self._closed = False

  def sampler(
    self, batch_size: int, num_blocks: int | None = None
  ) -> base.TrajectorySampler:
    count = self.config.num_blocks(batch_size, num_blocks, self._pool.width)
    shared = self._shared
    self._limiter.widen(batch_size)
    streams = sampler_lib.SampleStreams(
      shared.link, self.config.name, _REPLAY_STREAMS
    )
    decoder = unroll_items.UnrollDecoder(
      shared.layout, batch_size, count, shared.mapper, self.update_priorities
    )
    return self._add_sampler(streams, decoder, self._settle)

  def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
    """See `Replay`; sent in a thread. ReverbError if an earlier one failed."""
    checked = base.check_priorities(priorities, len(keys))
    self._priority_updater().update(np.asarray(keys, np.uint64), checked)

  def flush(self, timeout: float | None = None) -> None:
    """See `ReverbTable`; the time-out applies only to inserts."""
    super().flush(timeout)
    if self._updater is not None:
      self._updater.flush()

  def close(self) -> None:
    """See `ReverbTable`; drops unsent priorities."""
    super().close()
    with self._lock:
      self._closed = True
    if self._updater is not None:
      self._updater.close()

  def _priority_updater(self) -> priorities_lib.PriorityUpdater:
    if self._updater is None:
      with self._lock:
        if self._closed:
          raise base.StoreClosed('The store was closed.')
        if self._updater is None:
          self._updater = priorities_lib.PriorityUpdater(
            self._shared.link, self.config.name
          )
    return self._updater

  def _settle(self) -> None:
    """Waits for inserts in flight while the table is filling."""
    # Later this makes no difference and would cost a round trip per batch.
    if self._lane is not None and self._limiter.is_young:
      with contextlib.suppress(base.RateLimited):
        self._lane.flush(_SETTLE_SECONDS)


def make_table(
  config: table_configs.TableConfig, shared: Shared, pool: blocks.BlockPool
) -> ReverbTable:
  """Returns a table, assumed to be empty."""
  if isinstance(config, table_configs.QueueConfig):
    return ReverbQueue(config, shared, pool)
  return ReverbReplay(config, shared, pool)
