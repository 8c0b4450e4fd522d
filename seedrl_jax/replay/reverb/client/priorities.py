"""Sends new priorities to a Reverb server, off the learner's critical path.

Used by the store. The thread is named `reverb-priorities-<table>`.
"""

import threading
from collections.abc import Callable

import numpy as np

from seedrl_jax.replay import base
from seedrl_jax.replay.reverb.client import connection as connection_lib

# Of one call to the server.
_KEYS_PER_CALL = 10_000


class PriorityUpdater:
  """Collects priorities and sends them; of a key's several the last counts."""

  def __init__(
    self,
    connection: connection_lib.Connection,
    table: str,
    max_pending: int = 100_000,
  ):
    """Starts the thread.

    Args:
      connection: to the server.
      table: its name.
      max_pending: keys that may wait to be sent.
    """
    self._connection = connection
    self._table = table
    self._max_pending = max_pending
    self._changed = threading.Condition()
    self._pending: dict[int, float] = {}
    self._sending = 0
    self._closed = False
    self._error: BaseException | None = None
    self._thread = threading.Thread(
      target=self._run, name=f'reverb-priorities-{table}', daemon=True
    )
    self._thread.start()

  def update(
    self,
    keys: np.ndarray,
    priorities: np.ndarray,
    timeout: float | None = None,
  ) -> None:
    """Hands priorities over; waits only while too many are to be sent.

    Args:
      keys: uint64 `[n]`, of items; unknown ones are ignored.
      priorities: float `[n]`, finite and not negative.
      timeout: seconds to wait; None: as long as it takes.

    Raises:
      RateLimited: after `timeout`; nothing was handed over.
      StoreClosed: after `close`.
      ReverbError: with which an earlier call to the server failed.
    """
    fresh = dict(zip(keys.tolist(), priorities.tolist(), strict=True))
    with self._changed:
      self._wait(
        lambda: (
          not self._pending
          or len(self._pending) + len(fresh) <= self._max_pending
        ),
        timeout,
      )
      self._pending.update(fresh)
      self._changed.notify_all()

  def flush(self, timeout: float | None = None) -> None:
    """Returns when the server has all that was handed over before.

    Raises:
      RateLimited, StoreClosed, ReverbError: as `update`.
    """
    with self._changed:
      self._wait(lambda: not self._pending and not self._sending, timeout)

  def close(self) -> None:
    """Ends the thread and every wait; what was not sent is dropped.

    A call under way ends when it is answered or the connection is closed.
    """
    with self._changed:
      self._closed = True
      self._changed.notify_all()
    self._thread.join()

  def _wait(self, ready: Callable[[], bool], timeout: float | None) -> None:
    def done() -> bool:
      return self._closed or self._error is not None or ready()

    passed = self._changed.wait_for(done, timeout)
    if self._error is not None:
      raise self._error
    if self._closed:
      raise base.StoreClosed(
        f'The store was closed: no update of priorities in {self._table}.'
      )
    if not passed:
      raise base.RateLimited(
        f'No update of priorities in table {self._table} at '
        f'{self._connection.address} within {timeout:g} s.'
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
    """Returns what is to be sent next; empty after `close`."""
    with self._changed:
      self._sending = 0
      self._changed.notify_all()
      self._changed.wait_for(lambda: self._closed or self._pending)
      if self._closed:
        return {}
      batch = dict(list(self._pending.items())[:_KEYS_PER_CALL])
      for key in batch:
        del self._pending[key]
      self._sending = len(batch)
      return batch
