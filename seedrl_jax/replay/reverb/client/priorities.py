"""Sends new priorities to a Reverb server in the background."""

import threading

import numpy as np

from seedrl_jax.replay import base
from seedrl_jax.replay.reverb.client import connection as connection_lib


class PriorityUpdater:
  """Sends priorities in a thread; of a key's several the last counts."""

  def __init__(self, connection: connection_lib.Connection, table: str):
    """Starts no thread before the first update."""
    self._connection = connection
    self._table = table
    self._changed = threading.Condition()
    self._pending: dict[int, float] = {}
    self._is_sending = False
    self._closed = False
    self._error: BaseException | None = None
    self._thread: threading.Thread | None = None

  def update(self, keys: np.ndarray, priorities: np.ndarray) -> None:
    """Queues priorities, float `[n]`, of keys, uint64 `[n]`.

    Raises:
      StoreClosed: after `close`.
      ReverbError: if an earlier call to the server failed.
    """
    with self._changed:
      self._check()
      self._pending.update(zip(keys.tolist(), priorities.tolist(), strict=True))
      self._changed.notify_all()
      if self._thread is None:
        self._thread = threading.Thread(
          target=self._run, name=f'reverb-priorities-{self._table}', daemon=True
        )
        self._thread.start()

  def flush(self) -> None:
    """Waits until the server has all earlier updates; raises as `update`."""
    with self._changed:
      self._changed.wait_for(
        lambda: (
          self._closed
          or self._error is not None
          or not (self._pending or self._is_sending)
        )
      )
      self._check()

  def close(self) -> None:
    """Ends the thread after the call under way; drops unsent priorities."""
    with self._changed:
      self._closed = True
      self._changed.notify_all()
    if self._thread is not None:
      self._thread.join()

  def _check(self) -> None:
    if self._error is not None:
      raise self._error
    if self._closed:
      raise base.StoreClosed(
        f'The store was closed: no update of priorities in {self._table}.'
      )

  def _run(self) -> None:
    try:
      while batch := self._take():
        self._connection.mutate(self._table, batch)
    except BaseException as e:
      with self._changed:
        self._error = None if self._closed else e
        self._changed.notify_all()

  def _take(self) -> dict[int, float]:
    """Returns the next priorities to send; empty after `close`."""
    with self._changed:
      self._is_sending = False
      self._changed.notify_all()
      self._changed.wait_for(lambda: self._closed or self._pending)
      if self._closed:
        return {}
      batch, self._pending = self._pending, {}
      self._is_sending = True
      return batch
