"""The server of a store: started by the run, or already running."""

import contextlib
import pathlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import logging

from seedrl_jax.replay import base, checkpoints
from seedrl_jax.replay.reverb.client import connection, server_rules
from seedrl_jax.replay.reverb.server import checkpoint_files, server
from seedrl_jax.runtime import file_io

# The store's own part of a checkpoint, beside Reverb's files.
_RECORD = 'store.json'

# Seconds in which a killed server ends, and a running one answers.
_END, _ANSWER = 0.5, 5.0
# Attempts to restart a lost server before the run gives up.
_ATTEMPTS = 5

Record = Mapping[str, Any]


class OwnServer:
  """A server of this run, restarted if it is lost; `link` connects to it."""

  def __init__(
    self,
    process: server.ReverbServer,
    patience: float,
    begin_with: str | None = None,
  ):
    """Starts the server and waits for it; raises ServerFailed.

    `begin_with` is the checkpoint of a coming `restore`, to start only once. If
    it cannot be loaded, the tables begin empty and `restore` raises.
    """
    self._lock = threading.Lock()
    self._server = process
    # The checkpoint from which a lost server is restarted.
    self._newest: str | None = None
    with contextlib.ExitStack() as on_failure:
      on_failure.callback(process.close)
      # `restore` raises it again.
      with contextlib.suppress(base.CheckpointError):
        self._load(begin_with)
      on_failure.pop_all()
    # The checkpoint that it started with, until `restore` asks for it.
    self._loaded: str | None = self._newest
    self.link = connection.Connection(
      lambda: process.address, patience, self._revive
    )

  def checkpoint(
    self, path: str, record: Record, on_asked: Callable[[], None] | None
  ) -> None:
    """Saves the tables and `record`, JSON values, in `path`.

    `path` appears complete. Calls `on_asked` each time that the request is
    sent. Raises OSError or RuntimeError if that fails.
    """
    written = self.link.checkpoint(on_asked)
    file_io.write_json(pathlib.Path(written, _RECORD), record)
    checkpoint_files.keep(written, path)
    self._newest = path

  def restore(self, path: str, check: Callable[[Record], None]) -> None:
    """Restores `path` after `check`, which raises if the record does not fit.

    Raises CheckpointError if it cannot be restored. The tables are then empty,
    or unchanged if the record was refused and the server began without it.
    """
    with self._lock:
      is_loaded, self._loaded = self._loaded == path, None
      try:
        check(_read_record(path))
      except BaseException:
        if is_loaded:
          self._load(None)
        raise
      if not is_loaded:
        self._load(path)

  def _load(self, path: str | None) -> None:
    """Starts the server with a checkpoint, or empty if that is no good."""
    self._newest = None
    try:
      self._server.start(path)
    except base.CheckpointError:
      self._server.start()
      raise
    self._newest = path

  def close(self) -> None:
    """Ends the connection and the server."""
    self.link.close()
    self._server.close()

  def _revive(self) -> None:
    with self._lock:
      # A killed process loses its connections before it has ended.
      has_ended = self._server.wait_end(_END)
      # Another call may have revived it.
      if not has_ended and connection.answers(self._server.address, _ANSWER):
        return
      start = time.monotonic()
      logging.warning('%s', self._server.failure())
      newest = self._newest
      if newest is not None and not checkpoint_files.is_complete(newest):
        newest = None
      for left in reversed(range(_ATTEMPTS)):
        try:
          self._server.start(newest)
          break
        except server.ServerFailed as e:
          # What ended the last one may have ended this one too.
          if not left:
            raise
          logging.warning('%s', e)
      logging.warning(
        'Restarted the Reverb server in %.1f s, %s; what was never '
        'acknowledged is sent again.',
        time.monotonic() - start,
        f'from {newest}' if newest else 'empty, as there is no checkpoint yet',
      )


class ExternalServer:
  """A server that this run did not start, at `--config.replay.address`."""

  def __init__(
    self, address: str, rules: Sequence[Mapping[str, Any]], patience: float
  ):
    """Connects; raises ReverbError if no server answers or it does not fit."""
    self.link = connection.Connection(address, patience)
    try:
      server_rules.check_fits(address, self.link.server_info(), rules)
    except BaseException:
      self.link.close()
      raise

  def checkpoint(
    self, path: str, record: Record, on_asked: Callable[[], None] | None
  ) -> None:
    """See `OwnServer`; the files stay on the server's machine.

    Only one of the processes that share a server should save: a server deletes
    all but its newest checkpoint.
    """
    written = self.link.checkpoint(on_asked)
    where = {'address': self.link.address, 'path': written}
    file_io.write_json(pathlib.Path(path, _RECORD), {**record, 'server': where})

  def restore(self, path: str, check: Callable[[Record], None]) -> None:
    """Checks `path`; only logs how the server's owner can load it."""
    record = _read_record(path)
    check(record)
    where = record.get('server')
    saved = where.get('path', path) if isinstance(where, dict) else path
    logging.warning(
      'The Reverb server at %s keeps what it holds; to go back to this '
      "checkpoint's replay, start it again with %s as its newest checkpoint.",
      self.link.address,
      saved,
    )

  def close(self) -> None:
    """Ends the connection."""
    self.link.close()


def _read_record(path: str) -> Record:
  with checkpoints.refusing_damage(path):
    return file_io.read_json(pathlib.Path(path, _RECORD))
