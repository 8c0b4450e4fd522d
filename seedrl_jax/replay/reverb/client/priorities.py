"""Sends new priorities to a Reverb server in the background."""

import threading
from concurrent import futures

import numpy as np

from seedrl_jax.replay.reverb.client import connection as connection_lib


class PriorityUpdater:
  """Sends priorities in a thread; of a key's several the last counts."""

  def __init__(self, connection: connection_lib.Connection, table: str):
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
