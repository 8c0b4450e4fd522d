"""The tables of a store on a Reverb server, which keeps their rules."""

import abc
import functools
import threading
from concurrent import futures
from typing import Any

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

# Parallel streams of a replay's sampler.
_REPLAY_STREAMS = 2
# Blocks on their way to a replay.
_REPLAY_BLOCKS = 8
# Bytes of an unroll from which on threads are worth their hand-over.
_THREADED_BYTES = 1 << 14


class ReverbTable(base.Table):
  """A table on a server; threads start with the first writer or sampler."""

  def __init__(
    self,
    config: table_configs.TableConfig,
    link: connection.Connection,
    layout: blocks.UnrollLayout,
    mapper: unroll_items.Mapper,
    pool: blocks.BlockPool,
    max_in_flight: int,
    unrolls_per_item: int,
  ):
    self.config = config
    self.block_width = pool.width
    self._link = link
    self._layout = layout
    self._mapper = mapper
    self._pool = pool
    self._unit = unrolls_per_item
    self._lock = threading.Lock()
    self._interrupted = False
    self.inserts = insert_stream.InsertStream(link, config.name, max_in_flight)
    self._samplers: list[sampler_lib.Sampler] = []

  @abc.abstractmethod
  def _encode(
    self, block: base.Block, priorities: np.ndarray
  ) -> items.Encoded: ...

  def allocate(self) -> base.Block:
    return self._pool.take()

  def insert(
    self, block: base.Block, priorities: np.ndarray | None = None
  ) -> None:
    checked = base.check_priorities(priorities, block.width)

    def encode() -> items.Encoded:
      encoded = self._encode(block, checked)
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
    reader_waits = [sampler.waits() for sampler in self._samplers]
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
      sampler.interrupt()

  def close(self) -> None:
    """Ends the threads; the connection is closed already."""
    for sampler in self._samplers:
      sampler.close()
    self.inserts.close()

  def _start_sampler(
    self, num_items: int, decode: sampler_lib.Decode, **options: Any
  ) -> sampler_lib.Sampler:
    with self._lock:
      if self._interrupted:
        raise base.StoreClosed('The store was closed: no further sampler.')
      sampler = sampler_lib.Sampler(
        self._link, self.config.name, num_items, decode, **options
      )
      self._samplers.append(sampler)
    return sampler


class ReverbQueue(ReverbTable, base.Queue):
  """A queue on a server; an item is a whole block."""

  def __init__(
    self,
    config: table_configs.QueueConfig,
    link: connection.Connection,
    layout: blocks.UnrollLayout,
    mapper: unroll_items.Mapper,
    pool: blocks.BlockPool,
  ):
    _, in_flight = server_rules.queue_blocks(config, pool.width)
    super().__init__(config, link, layout, mapper, pool, in_flight, pool.width)

  def _encode(self, block: base.Block, priorities: np.ndarray) -> items.Encoded:
    del priorities
    return unroll_items.encode_block(
      self._layout.time_major, self.config.name, block, self._mapper
    )

  def _make_sampler(
    self, batch_size: int, num_blocks: int
  ) -> sampler_lib.Sampler:
    pool = blocks.BlockPool(self._layout, self.block_width)
    decode = functools.partial(unroll_items.decode_blocks, pool, self._mapper)
    # Several streams would not keep the order. What arrives is acknowledged, so
    # that it is not sent again after a loss.
    return self._start_sampler(
      num_blocks, decode, on_arrival=self.inserts.acknowledge
    )


class ReverbReplay(ReverbTable, base.Replay):
  """A replay on a server; an item is one unroll."""

  def __init__(
    self,
    config: table_configs.ReplayConfig,
    link: connection.Connection,
    layout: blocks.UnrollLayout,
    mapper: unroll_items.Mapper,
    pool: blocks.BlockPool,
  ):
    if layout.unroll_bytes < _THREADED_BYTES:
      mapper = map
    super().__init__(config, link, layout, mapper, pool, _REPLAY_BLOCKS, 1)
    self._rows = unroll_items.Rows(layout)
    self._encoder = unroll_items.UnrollEncoder(
      self._rows, config.name, layout.overlap
    )
    self._has_priorities = config.sampler == 'prioritized'
    # Sends priorities, in order.
    self._sender = futures.ThreadPoolExecutor(
      1, f'reverb-priorities-{config.name}'
    )
    self._last_update: futures.Future[None] | None = None

  def _encode(self, block: base.Block, priorities: np.ndarray) -> items.Encoded:
    return self._encoder.encode(block, priorities, self._mapper)

  def _make_sampler(
    self, batch_size: int, num_blocks: int
  ) -> sampler_lib.Sampler:
    decode = functools.partial(
      unroll_items.decode_unrolls,
      self._rows,
      blocks.BlockPool(self._layout, batch_size // num_blocks),
      self._mapper,
      self.update_priorities,
    )
    return self._start_sampler(batch_size, decode, num_streams=_REPLAY_STREAMS)

  def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
    """See `Replay`; sent in a thread, unless nothing draws by them.

    Raises ReverbError if an earlier call to the server failed.
    """
    checked = base.check_priorities(priorities, len(keys)).tolist()
    if not self._has_priorities:
      return
    # Of a key's several the last counts.
    updates = dict(zip(keys.tolist(), checked, strict=True))
    self._link.check()
    with self._lock:
      if (last := self._last_update) is not None and last.done():
        last.result()
      self._last_update = self._sender.submit(
        self._link.mutate, self.config.name, updates
      )

  def flush(self, timeout: float | None = None) -> None:
    super().flush(timeout)
    if (last := self._last_update) is not None:
      last.result()

  def close(self) -> None:
    """See `ReverbTable`; unsent priorities fail."""
    super().close()
    self._sender.shutdown()
