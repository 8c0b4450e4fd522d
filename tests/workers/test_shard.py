"""Tests one shard of a parameter server, and its messages."""

import socket
import threading

import numpy as np
import optax
import pytest

from seedrl_jax.workers import links
from seedrl_jax.workers import shard as shard_lib

_ONES = np.ones(3, np.float32)


@pytest.fixture(name='make')
def make_fixture():
  """Returns a function that makes a shard of three parameters."""
  snapshot = shard_lib.make_snapshot(optax.trace(0.5), 3, 3)
  snapshot.save([0 * _ONES] * 3, 4)
  return lambda **kwargs: shard_lib.Shard(snapshot, optax.trace(0.5), **kwargs)


class _Worker:
  """A worker's connection to a shard."""

  def __init__(self, shard):
    self._socket, theirs = socket.socketpair()
    threading.Thread(target=shard.serve, args=(theirs,)).start()

  def ask(self, version, gradient=None, kind=shard_lib.READ):
    """Returns the reply, and the target's parameters if they follow."""
    request, reply = shard_lib.make_messages(3)
    request['kind'], request['version'] = kind, version
    if gradient is not None:
      request['kind'], request['gradient'] = shard_lib.APPLY, gradient
      request['learning_rate'] = 1.0
    links.transfer(self._socket.send, request)
    links.transfer(self._socket.recv_into, reply)
    target = np.zeros(3, np.float32)
    if not reply['has_target']:
      return reply, None
    links.transfer(self._socket.recv_into, target)
    return reply, [*target]

  def close(self):
    self._socket.close()


@pytest.fixture(name='connect')
def connect_fixture():
  """Returns a function that connects a worker with a shard."""
  workers = []

  def connect(shard):
    workers.append(_Worker(shard))
    return workers[-1]

  yield connect
  for worker in workers:
    worker.close()


def test_a_target_is_sent_when_it_is_new(make, connect):
  shard = make(target_update_period=2)
  worker, other = connect(shard), connect(shard)
  reply, target = worker.ask(4)
  assert (reply['version'], reply['is_applied'], target) == (4, False, [0] * 3)
  assert worker.ask(4)[1] is None
  reply, target = worker.ask(4, _ONES)
  assert (reply['version'], reply['is_applied'], target) == (5, True, None)
  reply, target = worker.ask(5, _ONES)
  # The momentum is one half.
  assert (reply['version'], target) == (6, [2.5] * 3)
  assert [*reply['params']] == target
  assert worker.ask(6)[1] is None
  assert other.ask(0)[1] == target


def test_a_snapshot_holds_all(make, connect):
  connect(make()).ask(4, _ONES)
  # Nothing was saved.
  assert connect(make()).ask(4)[0]['version'] == 4
  worker = connect(make())
  worker.ask(4, _ONES)
  worker.ask(5, kind=shard_lib.SAVE)
  shard = make()
  assert connect(shard).ask(0)[0]['version'] == 5
  params, _, momentum = shard._arrays
  assert [*params] == [*momentum] == [1.0] * 3


def test_a_save_that_is_cut_short_leaves_the_last_one(make):
  shard = make()
  with pytest.raises(ValueError, match='shorter'):
    shard._snapshot.save(shard._arrays[:2], 9)
  assert make()._version == 4


def test_a_rejected_request_changes_nothing(make, connect):
  worker = connect(make())
  worker.ask(4)
  reply, _ = worker.ask(9, _ONES)
  assert reply['error'] == b'version 9 is later than 4'
  reply, _ = worker.ask(4, np.array([1.0, np.nan, 1.0], np.float32))
  assert reply['error'] == b'the gradient step is not finite'
  reply, _ = worker.ask(4)
  assert (reply['version'], [*reply['params']]) == (4, [0.0] * 3)
  assert not reply['error'] and not reply['is_applied']


def test_a_worker_may_know_more_than_a_shard_that_has_started_again(
  make, connect
):
  assert connect(make()).ask(9)[0]['version'] == 9


def test_a_request_that_is_cut_short_is_dropped(make):
  shard = make()
  ours, theirs = socket.socketpair()
  request, _ = shard_lib.make_messages(3)
  request['kind'], request['gradient'] = shard_lib.APPLY, _ONES
  ours.sendall(request.tobytes()[:-1])
  ours.close()
  # Returns, as the worker has ended.
  shard.serve(theirs)
  assert shard._version == 4
