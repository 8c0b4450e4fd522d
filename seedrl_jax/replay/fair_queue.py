"""Threads that wait for a table, served in order of arrival."""

import collections
import dataclasses
import threading
import time
from collections.abc import Callable

from seedrl_jax.replay import base, table_configs


@dataclasses.dataclass(eq=False, slots=True)
class _Waiter:
  woken: threading.Condition
  ready: Callable[[], bool]
  since: float


class FairQueue:
  """Lets one thread after the other pass when its condition holds.

  Only the first in the queue is ever woken, and only when it can go on. Every
  method is called with the table's lock held.
  """

  def __init__(self, lock: threading.Lock, name: str):
    """Makes an empty queue.

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
    """What all threads together have waited, those that still wait included."""
    now = time.monotonic()
    return self._seconds + sum(now - w.since for w in self._waiters)

  def enter(self, ready: Callable[[], bool], wait: bool = True) -> None:
    """Returns when it is the caller's turn and `ready()` is true.

    The caller then changes the table and calls `wake` of its queues, all
    without letting go of the lock.

    Args:
      ready: reads the table's state; called with the lock held.
      wait: whether to wait for it.

    Raises:
      StoreClosed: after `close`, also during the wait.
      RateLimited: if the caller would have to wait and does not want to.
    """
    self._check_open()
    if not self._waiters and ready():
      return
    if not wait:
      raise base.RateLimited(f'No {self._name} at the moment.')
    waiter = _Waiter(threading.Condition(self._lock), ready, time.monotonic())
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

  def close(self) -> None:
    """Ends every wait, now and later, with `StoreClosed`."""
    self._closed = True
    for waiter in self._waiters:
      waiter.woken.notify()

  def _check_open(self) -> None:
    if self._closed:
      raise base.StoreClosed(f'The store was closed: no {self._name}.')


class TableGate:
  """A table's lock, and its queues of writers and of samplers.

  Attributes:
    lock: to be held around every change of the table.
    writers, samplers: threads that wait to insert and to sample.
  """

  def __init__(self, name: str):
    """Makes the gate of table `name`."""
    self.lock = threading.Lock()
    self.writers = FairQueue(self.lock, f'insert into table {name}')
    self.samplers = FairQueue(self.lock, f'sample from table {name}')

  def wake(self) -> None:
    """To be called after every change, with the lock held."""
    self.writers.wake()
    self.samplers.wake()

  def close(self) -> None:
    """Wakes every waiter with `StoreClosed`."""
    with self.lock:
      self.writers.close()
      self.samplers.close()

  def info(
    self,
    config: table_configs.TableConfig,
    size: int,
    inserts: int,
    samples: int,
  ) -> base.TableInfo:
    """Returns a table's state; called with the lock held."""
    return base.TableInfo(
      config=config,
      size=size,
      inserts=inserts,
      samples=samples,
      writer_wait_seconds=self.writers.seconds,
      sampler_wait_seconds=self.samplers.seconds,
      waiting_writers=len(self.writers),
      waiting_samplers=len(self.samplers),
    )
