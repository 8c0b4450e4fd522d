"""The tables of a store on a Reverb server, which keeps their rules."""

import functools
import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import NamedTuple

import numpy as np

from seedrl_jax.replay import base, blocks, table_configs
from seedrl_jax.replay.reverb.client import (
  connection,
  insert_stream,
  items,
  server_rules,
  unroll_items,
)
from seedrl_jax.replay.reverb.client import sampler as sampler_lib
from seedrl_jax.replay.reverb.proto import reverb_pb2

# Batches that a sampler draws ahead.
_AHEAD = 1
# Parallel streams of a replay's sampler.
_REPLAY_STREAMS = 2
# Blocks on their way to a replay.
_REPLAY_BLOCKS = 8
# Bytes of an unroll from which on threads are worth their hand-over.
_THREADED_BYTES = 1 << 14


class Shared(NamedTuple):
  """What a store's tables share; `mapper` works in several threads."""

  link: connection.Connection
  layout: blocks.UnrollLayout
  mapper: unroll_items.Mapper


class ReverbTable(base.Table):
  """A table on a server; threads start with the first writer or sampler."""

  def __init__(
    self,
    config: table_configs.TableConfig,
    shared: Shared,
    pool: blocks.BlockPool,
    encode: unroll_items.Encode,
    max_in_flight: int,
    unrolls_per_item: int,
  ):
    self.config = config
    self.block_width = pool.width
    self._shared = shared
    self._pool = pool
    self._encode = encode
    self._unit = unrolls_per_item
    self._lock = threading.Lock()
    self._interrupted = False
    self.inserts = insert_stream.InsertStream(
      shared.link, config.name, max_in_flight
    )
    self._samplers: list[sampler_lib.Sampler] = []

  def allocate(self) -> base.Block:
    return self._pool.take()

  def insert(
    self, block: base.Block, priorities: np.ndarray | None = None
  ) -> None:
    checked = base.check_priorities(priorities, block.width)

    def encode() -> items.Encoded:
      encoded = self._encode(block, checked, self._shared.mapper)
      self._pool.give_back([block])
      return encoded

    self.inserts.insert(encode)

  def flush(self, timeout: float | None = None) -> None:
    """Waits until the server has all earlier inserts and updates.

    See `InsertStream.flush` for `timeout`, which applies only to inserts.
    """
    self.inserts.flush(timeout)

  def info(self, served: reverb_pb2.TableInfo) -> base.TableInfo:
    """Returns the state by the server's."""
    limiter = served.rate_limiter_info
    writer_seconds, writers = self.inserts.waits()
    reader_waits = [sampler.streams.waits() for sampler in self._samplers]
    return base.TableInfo(
      config=self.config,
      size=served.current_size * self._unit,
      inserts=limiter.insert_stats.completed * self._unit,
      samples=limiter.sample_stats.completed * self._unit,
      writer_wait_seconds=writer_seconds,
      sampler_wait_seconds=sum(seconds for seconds, _ in reader_waits),
      waiting_writers=writers,
      waiting_samplers=sum(count for _, count in reader_waits),
    )

  def interrupt(self) -> None:
    with self._lock:
      self._interrupted = True
    self.inserts.interrupt()
    # Not their threads: one may be looking for a lost server.
    for sampler in self._samplers:
      sampler.streams.interrupt()

  def close(self) -> None:
    """Ends the threads; the connection is closed already."""
    for sampler in self._samplers:
      sampler.streams.close()
    self.inserts.close()

  def _start_sampler(
    self,
    num_items: int,
    decode: sampler_lib.Decode,
    num_streams: int,
    on_arrival: Callable[[Sequence[int]], None],
  ) -> sampler_lib.Sampler:
    with self._lock:
      if self._interrupted:
        raise base.StoreClosed('The store was closed: no further sampler.')
      streams = sampler_lib.SampleStreams(
        self._shared.link, self.config.name, num_streams, on_arrival
      )
      sampler = sampler_lib.Sampler(streams, num_items, decode, _AHEAD)
      self._samplers.append(sampler)
    return sampler


class ReverbQueue(ReverbTable, base.Queue):
  """A queue on a server; an item is a whole block."""

  def __init__(
    self,
    config: table_configs.QueueConfig,
    shared: Shared,
    pool: blocks.BlockPool,
  ):
    encode = functools.partial(
      unroll_items.encode_block, shared.layout.time_major, config.name
    )
    _, in_flight = server_rules.queue_blocks(config, pool.width)
    super().__init__(config, shared, pool, encode, in_flight, pool.width)

  def _make_sampler(
    self, batch_size: int, num_blocks: int
  ) -> sampler_lib.Sampler:
    pool = blocks.BlockPool(self._shared.layout, self.block_width)
    mapper = self._shared.mapper
    decode = functools.partial(unroll_items.decode_blocks, pool, mapper)
    # Several streams would not keep the order. What arrives is acknowledged, so
    # that it is not sent again after a loss.
    return self._start_sampler(num_blocks, decode, 1, self.inserts.acknowledge)


class PriorityUpdater:
  """Sends priorities in a thread; of a key's several the last counts."""

  def __init__(self, connection: connection.Connection, table: str):
    """Starts no thread before the first update."""
    self._connection = connection
    self._table = table
    self._lock = threading.Lock()
    self._pending: dict[int, float] = {}
    self._sender = futures.ThreadPoolExecutor(1, f'reverb-priorities-{table}')
    # Its result is there once all updates have been sent.
    self._newest: futures.Future[None] | None = None
    self._error: BaseException | None = None

  def update(self, keys: np.ndarray, priorities: np.ndarray) -> None:
    """Queues priorities, float `[n]`, of keys, uint64 `[n]`.

    Raises ReverbError if an earlier call to the server failed.
    """
    with self._lock:
      self._check()
      if not self._pending:
        self._newest = self._sender.submit(self._send)
      self._pending.update(zip(keys.tolist(), priorities.tolist(), strict=True))

  def flush(self) -> None:
    """Waits until the server has all earlier updates; raises as `update`."""
    with self._lock:
      self._check()
      newest = self._newest
    if newest is not None:
      newest.result()

  def close(self) -> None:
    """Ends the thread; close the connection first, which ends its call."""
    self._sender.shutdown()

  def _check(self) -> None:
    self._connection.check()
    if self._error is not None:
      raise self._error

  def _send(self) -> None:
    with self._lock:
      self._check()
      batch, self._pending = self._pending, {}
    try:
      self._connection.mutate(self._table, batch)
    except BaseException as e:
      self._error = e
      raise


class ReverbReplay(ReverbTable, base.Replay):
  """A replay on a server; an item is one unroll."""

  def __init__(
    self,
    config: table_configs.ReplayConfig,
    shared: Shared,
    pool: blocks.BlockPool,
  ):
    if shared.layout.unroll_bytes < _THREADED_BYTES:
      shared = shared._replace(mapper=map)
    self._rows = unroll_items.Rows(shared.layout)
    encoder = unroll_items.UnrollEncoder(
      self._rows, config.name, shared.layout.overlap
    )
    super().__init__(config, shared, pool, encoder.encode, _REPLAY_BLOCKS, 1)
    self._updater = PriorityUpdater(shared.link, config.name)
    self._has_priorities = config.sampler == 'prioritized'

  def _make_sampler(
    self, batch_size: int, num_blocks: int
  ) -> sampler_lib.Sampler:
    decode = functools.partial(
      unroll_items.decode_unrolls,
      self._rows,
      blocks.BlockPool(self._shared.layout, batch_size // num_blocks),
      self._shared.mapper,
      self.update_priorities,
    )
    return self._start_sampler(
      batch_size, decode, _REPLAY_STREAMS, lambda keys: None
    )

  def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
    """See `Replay`; sent in a thread, unless nothing draws by them.

    Raises ReverbError if an earlier call to the server failed.
    """
    checked = base.check_priorities(priorities, len(keys))
    if self._has_priorities:
      self._updater.update(np.asarray(keys, np.uint64), checked)

  def flush(self, timeout: float | None = None) -> None:
    super().flush(timeout)
    self._updater.flush()

  def close(self) -> None:
    """See `ReverbTable`; drops unsent priorities."""
    super().close()
    self._updater.close()
