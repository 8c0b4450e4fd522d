"""The tables of a store on a Reverb server, which keeps their rules."""

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


class ReverbTable(base.Table):
  """A table on a server; threads start with the first writer or sampler."""

  def __init__(
    self,
    config: table_configs.TableConfig,
    link: connection.Connection,
    layout: blocks.UnrollLayout,
    mapper: unroll_items.Mapper,
    block_width: int,
  ):
    """`block_width` is of tables without a width of their own."""
    self.config = config
    self.block_width = config.block_width or block_width
    self._link = link
    self._layout = layout
    self._pool = blocks.BlockPool(layout, self.block_width)
    self._lock = threading.Lock()
    self._interrupted = False
    self._samplers: list[sampler_lib.Sampler] = []
    # Sends priorities, in order.
    self._sender = futures.ThreadPoolExecutor(
      1, f'reverb-priorities-{config.name}'
    )
    self._last_update: futures.Future[None] | None = None
    self._codec: unroll_items.BlockCodec | unroll_items.UnrollCodec
    if isinstance(config, table_configs.QueueConfig):
      self._codec = unroll_items.BlockCodec(layout, config.name, mapper)
      self._unrolls_per_item = self.block_width
      self._has_priorities = False
      _, in_flight = server_rules.queue_blocks(config, self.block_width)
      self.inserts = insert_stream.InsertStream(link, config.name, in_flight)
      # Several streams would not keep the order. What arrives is acknowledged,
      # so that it is not sent again after a loss.
      self._options: dict[str, Any] = {'on_arrival': self.inserts.acknowledge}
    else:
      self._codec = unroll_items.UnrollCodec(layout, config.name, mapper)
      self._unrolls_per_item = 1
      self._has_priorities = config.sampler == 'prioritized'
      self.inserts = insert_stream.InsertStream(
        link, config.name, _REPLAY_BLOCKS
      )
      self._options = {'num_streams': _REPLAY_STREAMS}

  def allocate(self) -> base.Block:
    return self._pool.take()

  def insert(
    self, block: base.Block, priorities: np.ndarray | None = None
  ) -> None:
    checked = base.check_priorities(priorities, block.width)

    def encode() -> items.Encoded:
      encoded = self._codec.encode(block, checked)
      self._pool.give_back([block])
      return encoded

    self.inserts.insert(encode)

  def _make_sampler(
    self, batch_size: int, num_blocks: int
  ) -> sampler_lib.Sampler:
    pool = blocks.BlockPool(self._layout, batch_size // num_blocks)
    decode = functools.partial(self._codec.decode, pool, self.update_priorities)
    num_items = batch_size // self._unrolls_per_item
    with self._lock:
      if self._interrupted:
        raise base.StoreClosed('The store was closed: no further sampler.')
      sampler = sampler_lib.Sampler(
        self._link, self.config.name, num_items, decode, **self._options
      )
      self._samplers.append(sampler)
    return sampler

  def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
    """See `Table`; sent in a thread, unless nothing draws by them.

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
    """Waits until the server has all earlier inserts and updates.

    See `InsertStream.flush` for `timeout`, which applies only to inserts.
    """
    self.inserts.flush(timeout)
    if (last := self._last_update) is not None:
      last.result()

  def info(self, served: reverb_pb2.TableInfo) -> base.TableInfo:
    """Returns the state by the server's."""
    limiter = served.rate_limiter_info
    writer_seconds, writers = self.inserts.writers.waits()
    reader_waits = [sampler.readers.waits() for sampler in self._samplers]
    return base.TableInfo(
      config=self.config,
      size=served.current_size * self._unrolls_per_item,
      inserts=limiter.insert_stats.completed * self._unrolls_per_item,
      samples=limiter.sample_stats.completed * self._unrolls_per_item,
      writer_wait_seconds=writer_seconds,
      sampler_wait_seconds=sum(seconds for seconds, _ in reader_waits),
      waiting_writers=writers,
      waiting_samplers=sum(count for _, count in reader_waits),
    )

  def interrupt(self) -> None:
    with self._lock:
      self._interrupted = True
    # Earlier inserts are still sent.
    self.inserts.writers.close()
    # Not their threads: one may be looking for a lost server.
    for sampler in self._samplers:
      sampler.interrupt()

  def close(self) -> None:
    """Ends the threads; the connection is closed, so unsent priorities fail."""
    for sampler in self._samplers:
      sampler.close()
    self.inserts.close()
    self._sender.shutdown()
