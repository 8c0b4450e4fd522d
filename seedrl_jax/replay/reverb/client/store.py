"""The store on a Reverb server; this process needs no TensorFlow."""

import contextlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any

from absl import logging

from seedrl_jax import types
from seedrl_jax.replay import base, blocks, checkpoints, table_configs
from seedrl_jax.replay.reverb import errors
from seedrl_jax.replay.reverb.client import (
  server_location,
  server_rules,
  tables,
)

_VERSION = 4
# Seconds per table to take earlier inserts before a checkpoint. What its rules
# hold back longer is not saved.
_FLUSH_SECONDS = 1.0

# Seconds between messages about a server that does not answer.
_SILENCE = 60

# Makes the server from its tables' rules.
MakeLocation = Callable[
  [Sequence[Mapping[str, Any]]],
  server_location.OwnServer | server_location.ExternalServer,
]


class ReverbStore(base.TrajectoryStore):
  """Tables of unrolls on the Reverb server at `location`."""

  def __init__(
    self,
    configs: Sequence[table_configs.TableConfig],
    unroll_spec: types.Unroll,
    block_width: int,
    make_location: MakeLocation,
    batch_size: int,
    overlap: int = 1,
  ):
    """Connects; ReverbError if there is no server. See also `EmbeddedStore`."""
    self.unroll_spec = unroll_spec
    self.overlap = overlap
    self._layout = blocks.UnrollLayout(unroll_spec, overlap)
    self._block_width = block_width
    self._lock = threading.Lock()
    self._closed = False
    self._tables: dict[str, tables.ReverbTable] = {}
    rules = [
      server_rules.server_rules(c, block_width, batch_size) for c in configs
    ]
    self._workers = futures.ThreadPoolExecutor(
      len(os.sched_getaffinity(0)), 'reverb-codec'
    )
    with contextlib.ExitStack() as undo:
      undo.callback(self._workers.shutdown)
      self.location = make_location(rules)
      undo.callback(self.location.close)
      self._infos = self.location.link.server_info()
      undo.pop_all()
    pools = blocks.make_pools(self._layout, configs, block_width)
    shared = tables.Shared(self.location.link, self._layout, self._workers.map)
    for config in configs:
      name, pool = config.name, pools[config.name]
      if isinstance(config, table_configs.QueueConfig):
        self._tables[name] = tables.ReverbQueue(config, shared, pool)
      else:
        self._tables[name] = tables.ReverbReplay(config, shared, pool)

  @property
  def address(self) -> str:
    return self.location.link.address

  @property
  def bytes_sent(self) -> int:
    """Bytes that all writers have sent so far."""
    return sum(t.inserts.bytes_sent for t in self._tables.values())

  def flush(self) -> None:
    """See `TrajectoryStore`; raises ReverbError if the server is lost."""
    for table in self._tables.values():
      table.flush()

  def info(self) -> Mapping[str, base.TableInfo]:
    """See `TrajectoryStore`; a lost server's are the last known."""
    try:
      self._infos = self.location.link.peek()
    except errors.ReverbError as e:
      # A stopped server keeps its connections: nothing else would report it.
      logging.log_every_n_seconds(logging.WARNING, '%s', _SILENCE, e)
    except base.StoreClosed:
      pass
    infos = self._infos
    return {
      name: table.info(infos[name]) for name, table in self._tables.items()
    }

  def checkpoint(
    self, path: str, on_snapshot: Callable[[], None] | None = None
  ) -> None:
    """See `TrajectoryStore`; batches drawn ahead are not saved.

    `on_snapshot` is called some milliseconds before the server's snapshot.
    """
    self._flush_briefly()
    record = {
      'version': _VERSION,
      'unroll': self._layout.signature(),
      'block_width': self._block_width,
    }
    self.location.checkpoint(path, record, on_snapshot)

  def restore(self, path: str) -> None:
    # Otherwise it would be sent again, to the restored tables.
    self._flush_briefly()
    record = self.location.restore(
      path,
      lambda r: checkpoints.check_fits(path, r, _VERSION, self._layout),
    )
    if record is not None and record.get('block_width') != self._block_width:
      for name, table in self._tables.items():
        # Its blocks cannot be cut to another width.
        if isinstance(table, base.Queue):
          logging.warning(
            'Table %s of the replay checkpoint %s starts empty: it holds '
            'blocks of %s unrolls, and this run has blocks of %d.',
            name,
            path,
            record.get('block_width'),
            self._block_width,
          )
          self.location.link.reset(name)
    self._infos = self.location.link.server_info()

  def close(self) -> None:
    """See `TrajectoryStore`; stops the server if it is the store's own."""
    self.interrupt()
    with self._lock:
      if self._closed:
        return
      self._closed = True
    # First, as this ends the calls, and the restart, that the others wait for.
    self.location.close()
    for table in self._tables.values():
      table.close()
    self._workers.shutdown()

  def _flush_briefly(self) -> None:
    for table in self._tables.values():
      table.flush(_FLUSH_SECONDS)
