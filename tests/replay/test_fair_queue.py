"""The queue of waiting threads: its order and its end."""

import threading

import pytest

from seedrl_jax.replay import base, fair_queue
from tests.patience import wait_until


class _Stock:
  def __init__(self):
    self.lock = threading.Lock()
    self.queue = fair_queue.FairQueue(self.lock, 'take')
    self.amount = 0
    self.taken = []

  def take(self, n, wait=True):
    with self.lock:
      self.queue.enter(lambda: self.amount >= n, wait)
      self.amount -= n
      self.taken.append(n)
      self.queue.wake()

  def put(self, n):
    with self.lock:
      self.amount += n
      self.queue.wake()

  def waiting(self):
    with self.lock:
      return len(self.queue)


def _queue_up(stock, threads, amounts):
  for i, n in enumerate(amounts):
    threads.start(lambda n=n: stock.take(n))
    wait_until(lambda i=i: stock.waiting() == i + 1)


def test_served_in_order_of_arrival(threads):
  stock = _Stock()
  _queue_up(stock, threads, [3, 1, 2])
  stock.put(2)
  # There is enough for the second, but it cannot overtake the first.
  with pytest.raises(base.RateLimited):
    stock.take(1, wait=False)
  assert stock.taken == []
  stock.put(4)
  assert threads.join() == []
  assert stock.taken == [3, 1, 2]
  assert stock.queue.waits()[0] > 0
