"""The store on a Reverb server; this process needs no TensorFlow."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any

from absl import logging

from seedrl_jax import types
from seedrl_jax.replay import base, blocks, checkpoints, table_configs
from seedrl_jax.replay.reverb import errors
from seedrl_jax.replay.reverb.client import server_location, tables

_VERSION = 4
# Seconds per table to take earlier inserts before a checkpoint. What its rules
# hold back longer is not saved.
_FLUSH_SECONDS = 1.0

# Seconds between messages about a server that does not answer.
_SILENCE = 60


class ReverbStore(base.TrajectoryStore):
  """Tables of unrolls on a Reverb server."""

  def __init__(
    self,
    configs: Sequence[table_configs.TableConfig],
    unroll_spec: types.Unroll,
    block_width: int,
    location: server_location.OwnServer | server_location.ExternalServer,
    overlap: int = 1,
  ):
    """Owns `location`, whose server has the tables; see `EmbeddedStore`.

    Raises ReverbError if the server does not answer.
    """
    self.unroll_spec = unroll_spec
    self.overlap = overlap
    self.location = location
    self._layout = blocks.UnrollLayout(unroll_spec, overlap)
    self._block_width = block_width
    try:
      self._infos = location.link.server_info()
    except BaseException:
      location.close()
      raise
    self._workers = futures.ThreadPoolExecutor(
      len(os.sched_getaffinity(0)), 'reverb-codec'
    )
    self._tables: dict[str, tables.ReverbTable] = {}
    for config in configs:
      self._tables[config.name] = tables.ReverbTable(
        config,
        location.link,
        self._layout,
        self._workers.map,
        block_width,
      )

  @property
  def address(self) -> str:
    return self.location.link.address

  @property
  def bytes_sent(self) -> int:
    """Bytes that all writers have sent so far."""
    return sum(t.inserts.bytes_sent for t in self._tables.values())

  def flush(self, timeout: float | None = None) -> None:
    """See `TrajectoryStore`, and `ReverbTable.flush` for the time-out.

    Raises ReverbError if the server is lost.
    """
    for table in self._tables.values():
      table.flush(timeout)

  def info(self) -> Mapping[str, base.TableInfo]:
    """See `TrajectoryStore`; a lost server's are the last known."""
    try:
      self._infos = self.location.link.server_info(recovers=False)
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
    self.flush(_FLUSH_SECONDS)
    record = {
      'version': _VERSION,
      'unroll': self._layout.signature(),
      'block_width': self._block_width,
    }
    self.location.checkpoint(path, record, on_snapshot)

  def restore(self, path: str) -> None:
    # Otherwise it would be sent again, to the restored tables.
    self.flush(_FLUSH_SECONDS)

    def check(record: Mapping[str, Any]) -> None:
      checkpoints.check_fits(path, record, _VERSION, self._layout)
      # A queue's blocks cannot be cut to another width.
      width = record.get('block_width')
      has_queue = any(x.config.sampler == 'fifo' for x in self._tables.values())
      if has_queue and width != self._block_width:
        raise base.CheckpointError(
          f'The replay checkpoint {path} holds blocks of {width} unrolls, and '
          f'this run has blocks of {self._block_width}.'
        )

    try:
      self.location.restore(path, check)
    finally:
      # Connects to the new server, if there is one.
      self._infos = self.location.link.server_info()

  def close(self) -> None:
    """See `TrajectoryStore`; stops the server if it is the store's own."""
    self.interrupt()
    # First, as this ends the calls, and the restart, that the others wait for.
    self.location.close()
    for table in self._tables.values():
      table.close()
    self._workers.shutdown()
