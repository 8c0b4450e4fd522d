"""Tests one shard of a parameter server, and its messages."""

import numpy as np
import optax
import pytest

from seedrl_jax.workers import links
from seedrl_jax.workers import shard as shard_lib

_ONES = np.ones(3, np.float32)


class _Worker:
  """The first of two workers, and what it shares with a shard."""

  def __init__(self):
    self.arrays = shard_lib.make_memory(optax.trace(0.5), 2, 3, 3).arrays
    requests, replies, version, *_ = self.arrays
    self.request, self.reply = requests[0], replies[0]
    version[...] = 4
    self.event, *self.worker_events = [links.ProcessEvent() for _ in range(3)]

  def start(self, **kwargs):
    """Returns the shard."""
    return shard_lib.Shard(
      self.arrays, optax.trace(0.5), self.event, self.worker_events, **kwargs
    )

  def write(self, version, gradient=None):
    """Writes a request, with a gradient if there is one."""
    self.request['version'] = version
    self.request['has_gradient'] = gradient is not None
    if gradient is not None:
      self.request['gradient'] = gradient
    self.request['learning_rate'] = 1.0
    self.request['number'] += 1
    self.event.set()

  def ask(self, shard, version, gradient=None):
    """Returns the reply."""
    self.write(version, gradient)
    shard.serve()
    own, other = self.worker_events
    assert own.wait() and not other.wait()
    assert self.reply['number'] == self.request['number']
    return self.reply


@pytest.fixture(name='worker')
def worker_fixture():
  return _Worker()


def test_the_target_is_updated_at_multiples_of_the_period(worker):
  shard = worker.start(target_update_period=2)
  reply = worker.ask(shard, 4)
  assert (reply['version'], reply['is_applied']) == (4, False)
  reply = worker.ask(shard, 4, _ONES)
  assert (reply['version'], reply['is_applied']) == (5, True)
  assert [*shard._target] == [0] * 3
  reply = worker.ask(shard, 5, _ONES)
  # The momentum is one half.
  assert [*reply['params']] == [*shard._target] == [2.5] * 3
  assert reply['version'] == 6


def test_a_shard_that_is_started_again_has_lost_nothing(worker):
  worker.ask(worker.start(), 4, _ONES)
  shard = worker.start()
  reply = worker.ask(shard, 0)
  assert (reply['version'], reply['is_lost']) == (5, False)
  assert [*shard._params] == [*shard._optimizer[0]] == [1.0] * 3


def test_a_request_without_a_reply_is_lost(worker):
  """The shard that died may have applied its gradient already."""
  worker.write(4, _ONES)
  shard = worker.start()
  shard.serve()
  assert worker.reply['number'] == worker.request['number']
  assert worker.reply['is_lost'] and not worker.reply['is_applied']
  assert worker.worker_events[0].wait()
  reply = worker.ask(shard, 4, _ONES)
  assert (reply['version'], reply['is_lost']) == (5, False)


def test_a_rejected_request_changes_nothing(worker):
  shard = worker.start()
  reply = worker.ask(shard, 9, _ONES)
  assert reply['error'] == b'version 9 is later than 4'
  reply = worker.ask(shard, 4, np.array([1.0, np.nan, 1.0], np.float32))
  assert reply['error'] == b'the gradient step is not finite'
  reply = worker.ask(shard, 4)
  assert (reply['version'], [*reply['params']]) == (4, [0.0] * 3)
  assert not reply['error'] and not reply['is_applied']
