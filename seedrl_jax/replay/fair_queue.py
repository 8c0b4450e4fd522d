"""A line of threads that wait for a table, served in order of arrival.

Called by the tables of the embedded store.
"""

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


class Line:
  """Lets one thread after the other pass when its condition holds.

  Only the first in line is ever woken, and only when it can go on; nobody
  overtakes. Every method is called with the table's lock held.
  """

  def __init__(self, lock: threading.Lock, name: str):
    """Makes an empty line.

    Args:
      lock: the table's; released while a thread waits.
      name: what is waited for, for messages, as "insert into table unrolls".
    """
    self._lock = lock
    self._name = name
    self._closed = False
    self._waiters: collections.deque[_Waiter] = collections.deque()
    self._seconds = 0.0

  def __len__(self) -> int:
    return len(self._waiters)

  @property
  def seconds(self) -> float:
    """What all threads together have waited, those in line included."""
    now = time.monotonic()
    return self._seconds + sum(now - w.since for w in self._waiters)

  def wait(self, ready: Callable[[], bool], timeout: float | None) -> None:
    """Returns when it is the caller's turn and `ready()` is true.

    The caller then changes the table and calls `wake` of its lines, all
    without letting go of the lock.

    Args:
      ready: reads the table's state; called with the lock held.
      timeout: seconds; None: no limit, 0: does not wait.

    Raises:
      StoreClosed: where `close` was called, before or during the wait.
      RateLimited: after `timeout`.
    """
    self._check_open()
    if not self._waiters and ready():
      return
    if timeout is not None and timeout <= 0:
      raise self._rate_limited(0)
    now = time.monotonic()
    waiter = _Waiter(threading.Condition(self._lock), ready, now)
    self._waiters.append(waiter)
    try:
      while not (self._waiters[0] is waiter and ready()):
        if timeout is None:
          waiter.woken.wait()
        elif not waiter.woken.wait(max(0.0, now + timeout - time.monotonic())):
          raise self._rate_limited(timeout)
        self._check_open()
    except BaseException:
      self._leave(waiter)
      # The next in line may ask for less than the one that gave up.
      self.wake()
      raise
    self._leave(waiter)

  def wake(self) -> None:
    """Wakes the first in line where it can go on."""
    if self._waiters and self._waiters[0].ready():
      self._waiters[0].woken.notify()

  def close(self) -> None:
    """Ends every wait, now and later, with `StoreClosed`."""
    self._closed = True
    for waiter in self._waiters:
      waiter.woken.notify()

  def _leave(self, waiter: _Waiter) -> None:
    self._waiters.remove(waiter)
    self._seconds += time.monotonic() - waiter.since

  def _check_open(self) -> None:
    if self._closed:
      raise base.StoreClosed(f'The store was closed: no {self._name}.')

  def _rate_limited(self, timeout: float) -> base.RateLimited:
    return base.RateLimited(f'No {self._name} within {timeout:g} s.')
