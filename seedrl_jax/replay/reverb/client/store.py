"""The store on a Reverb server: FIFO queues and prioritized replay.

Made by `factory.make_store`. Unrolls are encoded and decoded here, without
TensorFlow; the server is a process in an environment of its own.
"""

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from seedrl_jax import types
from seedrl_jax.replay import base, blocks
from seedrl_jax.replay.reverb.client import (
  client_rate_limiter,
  errors,
  tables,
  unroll_items,
)
from seedrl_jax.replay.reverb.client import priorities as priorities_lib
from seedrl_jax.replay.reverb.client import sampler as sampler_lib
from seedrl_jax.replay.reverb.client import (
  server_location as server_location_lib,
)
from seedrl_jax.replay.reverb.client import (
  table_info_poller as table_info_poller_lib,
)
from seedrl_jax.replay.reverb.client import writer as writer_lib
from seedrl_jax.replay.reverb.proto import reverb_pb2

_VERSION = 2
# Seconds that a draw from a table that is filling waits for what is under way.
_SETTLE = 1.0

MakeHost = Callable[
  [Sequence[Mapping[str, Any]], server_location_lib.OnRestart],
  server_location_lib.Host,
]


class ReverbStore(base.TrajectoryStore):
  """Tables of unrolls on a Reverb server."""

  def __init__(
    self,
    configs: Sequence[base.TableConfig],
    unroll_spec: types.Unroll,
    block_width: int,
    make_host: MakeHost,
    batch_size: int,
    overlap: int = 1,
    ahead: int = 1,
    num_streams: int = 2,
  ):
    """Connects, and starts the store's threads.

    Args:
      configs: of the tables.
      unroll_spec: `types.Unroll` of `types.ArraySpec` for one unroll, as the
        embedded store's.
      block_width: W, unrolls in a block that writers fill, where a table has
        no width of its own.
      make_host: gives the server of the rules and of what to call when it was
        restarted.
      batch_size: of the largest batch that will be drawn.
      overlap: steps that consecutive unrolls of an environment share.
      ahead: batches that a sampler draws ahead.
      num_streams: of a sampler; a queue has one.

    Raises:
      ReverbError: in one sentence, where there is no such server.
      ValueError: where a table cannot be as configured.
    """
    if len({config.name for config in configs}) < len(configs):
      raise ValueError('Two tables have one name.')
    self.unroll_spec = unroll_spec
    self.overlap = overlap
    self._layout = blocks.UnrollLayout(unroll_spec, overlap)
    self._pools = blocks.WriterPools(self._layout, configs, block_width)
    self._block_width = block_width
    self._ahead = ahead
    self._num_streams = num_streams
    self._lock = threading.Lock()
    # No server's count from before a reset is taken over after it.
    self._counting = threading.Lock()
    self._closed = threading.Event()
    self._interrupted = False
    somebody_waits = threading.Event()
    self._ledgers = {
      c.name: client_rate_limiter.Ledger(
        c, self._pools[c.name].width, somebody_waits.set
      )
      for c in configs
    }
    self._lanes: dict[str, writer_lib.InsertLane] = {}
    self._updaters: dict[str, priorities_lib.PriorityUpdater] = {}
    self._samplers: list[sampler_lib.Sampler] = []
    self._workers = unroll_items.Workers(len(os.sched_getaffinity(0)))
    self._sizes: dict[str, tuple[int, int]] = {}  # as `Ledger.info` takes them
    self._host = self._open_host(
      make_host,
      [tables.server_rules(c, block_width, batch_size) for c in configs],
    )
    self._refresher = table_info_poller_lib.Refresher(
      self._ledgers, self._resync_from_server, somebody_waits
    )

  def _open_host(
    self, make_host: MakeHost, rules: Sequence[Mapping[str, Any]]
  ) -> server_location_lib.Host:
    host = make_host(rules, self._resync)
    try:
      # A server that ran before has counts, and others may have written to it.
      self._resync(host.link.server_info())
    except BaseException:
      host.close()
      raise
    return host

  @property
  def host(self) -> server_location_lib.Host:
    """The server that it is on."""
    return self._host

  @property
  def bytes_sent(self) -> int:
    """Bytes that its writers have sent so far."""
    return sum(lane.bytes_sent for lane in list(self._lanes.values()))

  def writer(self, table: str) -> base.TrajectoryWriter:
    """See `TrajectoryStore`."""
    lane = self._lane(table)
    return blocks.PoolWriter(self._pools[table], lane.insert)

  def sampler(
    self, table: str, batch_size: int, num_blocks: int | None = None
  ) -> base.TrajectorySampler:
    """See `TrajectoryStore`."""
    counts = self._ledger(table)
    is_queue = counts.config.sampler == 'fifo'
    count = blocks.blocks_of_batch(
      counts.config, batch_size, num_blocks, self._pools[table].width
    )
    counts.widen(batch_size)
    made = sampler_lib.Sampler(
      self._host.link,
      counts,
      self._layout,
      self._workers.map,
      batch_size,
      count,
      self._ahead,
      1 if is_queue else self._num_streams,
      (lambda: None) if is_queue else functools.partial(self._settle, table),
      functools.partial(self._arrived, table) if is_queue else None,
    )
    with self._lock:
      self._samplers.append(made)
    return made

  def update_priorities(
    self, table: str, keys: np.ndarray, priorities: np.ndarray
  ) -> None:
    """See `TrajectoryStore`; returns before the server has them."""
    checked = base.check_priorities(priorities, len(keys))
    if self._ledger(table).config.sampler != 'fifo':
      self._updater(table).update(np.asarray(keys, np.uint64), checked)

  def flush(self, timeout: float | None = base.FLUSH_SECONDS) -> None:
    """See `TrajectoryStore`.

    Raises:
      StoreClosed: as there.
      ReverbError: where the server is lost for good.
    """
    for lane in list(self._lanes.values()):
      # What the server cannot take now is under way, and will be sent again.
      with contextlib.suppress(base.RateLimited):
        lane.flush(timeout)
    for updater in list(self._updaters.values()):
      updater.flush()

  def info(self) -> Mapping[str, base.TableInfo]:
    """See `TrajectoryStore`; a lost server's sizes are the last known."""
    self._ask_sizes()
    return {
      name: counts.info(self._sizes.get(name))
      for name, counts in self._ledgers.items()
    }

  def reset(self, table: str) -> None:
    """See `TrajectoryStore`; batches drawn ahead are still handed out."""
    counts = self._ledger(table)
    self.flush()
    with self._counting:
      self._host.link.reset(table)
      counts.resync(0, 0, 0, 0)

  def checkpoint(
    self, path: str, on_snapshot: Callable[[], None] | None = None
  ) -> None:
    """See `TrajectoryStore`.

    Batches that were drawn ahead are not in it. `on_snapshot` is called when
    the server was asked, some milliseconds before it looks at its tables.

    Raises:
      OSError, ReverbError: where it cannot be written.
    """
    self.flush()
    record = {
      'version': _VERSION,
      'unroll': self._layout.signature(),
      'block_width': self._block_width,
    }
    self._host.checkpoint(path, record, on_snapshot)

  def restore(self, path: str) -> None:
    """See `TrajectoryStore`."""
    # Or it would be sent again, to the tables that are restored.
    self.flush()
    record = self._host.restore(path, lambda r: self._check_fits(path, r))
    if record is None:
      for name, counts in self._ledgers.items():
        self._resync_from_server(name, counts)
      return
    self._resync(self._host.link.server_info())
    if record['block_width'] != self._block_width:
      self._drop_queues(path, record['block_width'])

  def interrupt(self) -> None:
    """See `TrajectoryStore`; what was inserted is still sent."""
    with self._lock:
      self._interrupted = True
      samplers, lanes = list(self._samplers), list(self._lanes.values())
    self._pools.close()
    for counts in self._ledgers.values():
      counts.close()
    # Not their threads: one may be looking for a lost server.
    for drawing in samplers:
      drawing.interrupt()
    for lane in lanes:
      lane.interrupt()

  def close(self) -> None:
    """See `TrajectoryStore`; stops the server where it is the store's own."""
    self.interrupt()
    with self._lock:
      if self._closed.is_set():
        return
      self._closed.set()
      closing: list[Any] = [
        *self._samplers,
        *self._lanes.values(),
        *self._updaters.values(),
      ]
    # First, as it ends the calls that the others wait for.
    self._host.link.close()
    for part in closing:
      part.close()
    self._refresher.close()
    self._workers.close()
    self._host.close()

  def _ledger(self, table: str) -> client_rate_limiter.Ledger:
    try:
      return self._ledgers[table]
    except KeyError:
      known = ', '.join(self._ledgers)
      raise ValueError(f'There is no table {table}, only {known}.') from None

  def _lane(self, table: str) -> writer_lib.InsertLane:
    counts = self._ledger(table)
    with self._lock:
      self._check_open()
      if table not in self._lanes:
        self._lanes[table] = writer_lib.InsertLane(
          self._host.link,
          counts,
          self._encoder(counts.config),
          self._workers.map,
          self._pools[table].give_back,
        )
      return self._lanes[table]

  def _encoder(
    self, config: base.TableConfig
  ) -> unroll_items.BlockEncoder | unroll_items.UnrollEncoder:
    if config.sampler == 'fifo':
      return unroll_items.BlockEncoder(self._layout, config.name)
    return unroll_items.UnrollEncoder(self._layout, config.name, self.overlap)

  def _updater(self, table: str) -> priorities_lib.PriorityUpdater:
    with self._lock:
      # Interrupted or not: the learner ends its last update after that.
      if self._closed.is_set():
        raise base.StoreClosed('The store was closed.')
      if table not in self._updaters:
        self._updaters[table] = priorities_lib.PriorityUpdater(
          self._host.link, table
        )
      return self._updaters[table]

  def _check_open(self) -> None:
    if self._interrupted:
      raise base.StoreClosed('The store was closed.')

  def _arrived(self, table: str, keys: Sequence[int]) -> None:
    """Else a kill between sample and acknowledgement would repeat a step."""
    lane = self._lanes.get(table)
    if lane is not None:
      lane.arrived(keys)

  def _settle(self, table: str) -> None:
    """Lets a draw see what was written and changed before it."""
    self._updater(table).flush()
    counts = self._ledger(table)
    # Later it makes no difference, and costs a round trip for each batch.
    if counts.is_young:
      with contextlib.suppress(base.RateLimited):
        self._lane(table).flush(_SETTLE)

  def _ask_sizes(self) -> None:
    """Notes the sizes of the tables, where the server answers."""
    acknowledged = {n: c.num_acknowledged for n, c in self._ledgers.items()}
    with contextlib.suppress(errors.ReverbError, base.StoreClosed):
      infos = self._host.link.peek()
      for name, before in acknowledged.items():
        self._sizes[name] = infos[name].current_size, before

  def _resync_from_server(
    self, name: str, counts: client_rate_limiter.Ledger
  ) -> bool:
    """Returns whether the server knows of anything new."""
    with self._counting:
      version = counts.version
      try:
        info = self._host.link.peek()[name]
      except (errors.ReverbError, base.StoreClosed):
        # Who waits for the server itself will say so.
        return False
      if version is None:
        limiter = info.rate_limiter_info
        version = counts.stalled_version(
          limiter.insert_stats.completed, limiter.sample_stats.completed
        )
        if version is None:
          return False
      return self._resync_table(counts, info, version)

  def _resync(self, infos: server_location_lib.Infos) -> None:
    """Counts from what a server says that has just begun."""
    for name, counts in self._ledgers.items():
      self._resync_table(counts, infos[name])

  def _resync_table(
    self,
    counts: client_rate_limiter.Ledger,
    info: reverb_pb2.TableInfo,
    version: int | None = None,
  ) -> bool:
    unit = self._unit(counts)
    with self._lock:
      drawing = [s for s in self._samplers if s.table == counts.config.name]
    limiter = info.rate_limiter_info
    return counts.resync(
      inserts=limiter.insert_stats.completed * unit,
      samples=limiter.sample_stats.completed * unit,
      size=info.current_size * unit,
      undrawn=sum(sampler.undrawn for sampler in drawing) * unit,
      version=version,
    )

  def _unit(self, counts: client_rate_limiter.Ledger) -> int:
    """Unrolls in an item."""
    config = counts.config
    return self._pools[config.name].width if config.sampler == 'fifo' else 1

  def _check_fits(self, path: str, record: server_location_lib.Record) -> None:
    start = f'The replay checkpoint {path} does not fit this run'
    if record['version'] != _VERSION:
      version = record['version']
      raise base.CheckpointError(f'{start}: it is of version {version}.')
    self._layout.check_signature(start, record['unroll'])

  def _drop_queues(self, path: str, block_width: int) -> None:
    """A queue's blocks cannot be cut; other tables hold single unrolls."""
    queues = [n for n, c in self._ledgers.items() if c.config.sampler == 'fifo']
    for name in queues:
      logging.warning(
        'Table %s of the replay checkpoint %s starts empty: it holds blocks of '
        '%d unrolls, and this run has blocks of %d.',
        name,
        path,
        block_width,
        self._block_width,
      )
      self.reset(name)
