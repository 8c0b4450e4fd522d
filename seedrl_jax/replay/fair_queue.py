"""Waiting threads of a table, served in order of arrival."""

import collections
import dataclasses
import threading
import time
from collections.abc import Callable

from seedrl_jax.replay import base


@dataclasses.dataclass(eq=False, slots=True)
class _Waiter:
  woken: threading.Condition
  ready: Callable[[], bool]
  since: float


class FairQueue:
  """Lets waiting threads pass in order, each when its condition holds.

  Only the first is ever woken, and only if it can go on. `enter` and `wake`
  are called with the table's lock held.
  """

  def __init__(self, lock: threading.Lock, name: str):
    """Takes the table's lock, released in waits, and a name for messages."""
    self.lock = lock
    self._name = name
    self._error: BaseException | None = None
    self._waiters: collections.deque[_Waiter] = collections.deque()
    self._seconds = 0.0

  def __len__(self) -> int:
    return len(self._waiters)

  def waits(self) -> tuple[float, int]:
    """Returns the seconds of all threads' waits, and how many wait now."""
    with self.lock:
      now = time.monotonic()
      current = sum(now - w.since for w in self._waiters)
      return self._seconds + current, len(self)

  def enter(self, ready: Callable[[], bool], wait: bool = True) -> None:
    """Returns when it is the caller's turn and `ready()` is true.

    The caller then changes the table and calls `wake` of its queues without
    releasing the lock.

    Raises what `close` says, also during the wait, or RateLimited if the caller
    would have to wait and `wait` is false.
    """
    self._check_open()
    if not self._waiters and ready():
      return
    if not wait:
      raise base.RateLimited(f'No {self._name} at the moment.')
    waiter = _Waiter(threading.Condition(self.lock), ready, time.monotonic())
    self._waiters.append(waiter)
    try:
      while not (self._waiters[0] is waiter and ready()):
        waiter.woken.wait()
        self._check_open()
    finally:
      self._waiters.remove(waiter)
      self._seconds += time.monotonic() - waiter.since

  def wake(self) -> None:
    """Wakes the first in the queue if it can go on."""
    if self._waiters and self._waiters[0].ready():
      self._waiters[0].woken.notify()

  def close(self, error: BaseException | None = None) -> None:
    """Makes current and later waits raise `error`; by default `StoreClosed`."""
    with self.lock:
      if error is None:
        self._error = base.StoreClosed(
          f'The store was closed: no {self._name}.'
        )
      self._error = self._error or error
      for waiter in self._waiters:
        waiter.woken.notify()

  def _check_open(self) -> None:
    if self._error is not None:
      raise self._error
