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
  arrays = shard_lib.make_memory(optax.trace(0.5), 3, 3).arrays
  arrays[0][...] = 4
  return lambda **kwargs: shard_lib.Shard(arrays, optax.trace(0.5), **kwargs)


class _Worker:
  """A worker's connection to a shard."""

  def __init__(self, shard):
    self._socket, theirs = socket.socketpair()
    threading.Thread(target=shard.serve, args=(theirs,)).start()

  def ask(self, version, gradient=None):
    """Returns the reply."""
    request, reply = shard_lib.make_messages(3)
    request['version'] = version
    if gradient is not None:
      request['has_gradient'], request['gradient'] = True, gradient
      request['learning_rate'] = 1.0
    links.transfer(self._socket.send, request)
    links.transfer(self._socket.recv_into, reply)
    return reply

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


def test_the_target_is_updated_at_multiples_of_the_period(make, connect):
  shard = make(target_update_period=2)
  worker = connect(shard)
  reply = worker.ask(4)
  assert (reply['version'], reply['is_applied']) == (4, False)
  reply = worker.ask(4, _ONES)
  assert (reply['version'], reply['is_applied']) == (5, True)
  assert [*shard._target] == [0] * 3
  reply = worker.ask(5, _ONES)
  # The momentum is one half.
  assert [*reply['params']] == [*shard._target] == [2.5] * 3
  assert reply['version'] == 6


def test_a_shard_that_is_started_again_has_lost_nothing(make, connect):
  connect(make()).ask(4, _ONES)
  shard = make()
  assert connect(shard).ask(0)['version'] == 5
  assert [*shard._params] == [*shard._optimizer[0]] == [1.0] * 3


def test_a_rejected_request_changes_nothing(make, connect):
  worker = connect(make())
  reply = worker.ask(9, _ONES)
  assert reply['error'] == b'version 9 is later than 4'
  reply = worker.ask(4, np.array([1.0, np.nan, 1.0], np.float32))
  assert reply['error'] == b'the gradient step is not finite'
  reply = worker.ask(4)
  assert (reply['version'], [*reply['params']]) == (4, [0.0] * 3)
  assert not reply['error'] and not reply['is_applied']


def test_a_request_that_is_cut_short_is_dropped(make):
  shard = make()
  ours, theirs = socket.socketpair()
  request, _ = shard_lib.make_messages(3)
  request['has_gradient'], request['gradient'] = True, _ONES
  ours.sendall(request.tobytes()[:-1])
  ours.close()
  # Returns, as the worker has ended.
  shard.serve(theirs)
  assert shard._version == 4
