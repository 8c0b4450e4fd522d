"""The line: order of arrival, targeted wake-ups, giving up."""

import threading

import pytest

from seedrl_jax.replay import base, fair_queue


class _Stock:
  """A number that threads take from, in turn."""

  def __init__(self):
    self.lock = threading.Lock()
    self.line = fair_queue.Line(self.lock, 'take')
    self.amount = 0
    self.taken = []

  def take(self, n, timeout=None):
    with self.lock:
      self.line.wait(lambda: self.amount >= n, timeout)
      self.amount -= n
      self.taken.append(n)
      self.line.wake()

  def put(self, n):
    with self.lock:
      self.amount += n
      self.line.wake()

  def waiting(self):
    with self.lock:
      return len(self.line)


class _Clock:
  """Stands still until it is set."""

  now = 0.0

  def monotonic(self) -> float:
    return self.now


def _queue_up(stock, threads, amounts):
  for i, n in enumerate(amounts):
    threads.start(lambda n=n: stock.take(n))
    threads.until(lambda i=i: stock.waiting() == i + 1)


def test_served_in_order_of_arrival(threads):
  stock = _Stock()
  _queue_up(stock, threads, [3, 1, 2])
  stock.put(2)
  # There is enough for the second, but the first is not overtaken.
  with pytest.raises(base.RateLimited):
    stock.take(1, timeout=0)
  assert stock.taken == []
  stock.put(4)
  assert threads.join() == []
  assert stock.taken == [3, 1, 2]
  assert stock.line.seconds > 0


def test_who_gives_up_lets_the_next_go_on(threads, monkeypatch):
  clock = _Clock()
  monkeypatch.setattr(fair_queue, 'time', clock)
  stock = _Stock()
  threads.start(lambda: stock.take(2, timeout=1000.0))
  threads.until(lambda: stock.waiting() == 1)
  threads.start(lambda: stock.take(1))
  threads.until(lambda: stock.waiting() == 2)
  stock.put(1)
  assert stock.taken == []
  # The first finds that its time is over, though the clock was never waited
  # for: whichever thread is late, both stood in line before.
  clock.now = 1000.0
  with stock.lock:
    stock.line._waiters[0].woken.notify()
  errors = threads.join()
  assert [type(e) for e in errors] == [base.RateLimited]
  assert stock.taken == [1]
  assert stock.waiting() == 0


def test_close_ends_every_wait(threads):
  stock = _Stock()
  _queue_up(stock, threads, [1, 1, 1])
  with stock.lock:
    stock.line.close()
  errors = threads.join()
  assert [type(e) for e in errors] == [base.StoreClosed] * 3
  stock.amount = 1
  with pytest.raises(base.StoreClosed, match='no take'):
    stock.take(1)
