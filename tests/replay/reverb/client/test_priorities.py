"""How priorities are collected and sent."""

import threading

import grpc
import numpy as np
import pytest

from seedrl_jax.replay import base
from seedrl_jax.replay.reverb import errors
from seedrl_jax.replay.reverb.client import connection, tables
from seedrl_jax.replay.reverb.proto import reverb_pb2
from tests.patience import PATIENCE
from tests.replay.reverb import fake_server


@pytest.fixture(name='link')
def link_fixture(server):
  link = connection.Connection(server.address, PATIENCE)
  yield link
  link.close()


@pytest.fixture(name='updater')
def updater_fixture(link):
  updater = tables.PriorityUpdater(link, 't')
  yield updater
  # Otherwise the updater would wait for the call under way.
  link.close()
  updater.close()


def _update(updater, values: dict[int, float]) -> None:
  keys = np.array(list(values), np.uint64)
  updater.update(keys, np.array(list(values.values())))


@pytest.fixture(name='held')
def held_fixture(server):
  """Holds each call back: semaphores of calls that came and that may go."""
  came, may_go = threading.Semaphore(0), threading.Semaphore(0)

  def answer(request):
    came.release()
    may_go.acquire(timeout=PATIENCE)
    return reverb_pb2.Empty()

  server.on_call['MutatePriorities'] = answer
  yield came, may_go
  may_go.release(2)


def test_last_priority_of_a_key_counts(server, updater, held):
  came, may_go = held
  _update(updater, {1: 1.0})
  assert came.acquire(timeout=PATIENCE)
  _update(updater, {2: 1.0, 2**64 - 1: 2.0})
  _update(updater, {2: 5.0})
  updater.update(np.array([4, 4], np.uint64), np.array([1.0, 7.0]))
  may_go.release(2)
  updater.flush()
  sent = [{u.key: u.priority for u in r.updates} for _, r in server.calls]
  assert sent == [{1: 1.0}, {2: 5.0, 2**64 - 1: 2.0, 4: 7.0}]
  assert {request.table for _, request in server.calls} == {'t'}


def test_failure_reaches_whoever_comes_next(server, updater):
  def refuse(request):
    raise fake_server.Abort(grpc.StatusCode.NOT_FOUND)

  server.on_call['MutatePriorities'] = refuse
  _update(updater, {1: 1.0})
  for call in (updater.flush, lambda: _update(updater, {1: 1.0})):
    with pytest.raises(errors.RequestRefused, match='no table t'):
      call()


def test_close_of_the_connection_wakes_everybody(link, updater, threads, held):
  came, _ = held
  _update(updater, {1: 1.0})
  assert came.acquire(timeout=PATIENCE)
  threads.start(updater.flush)
  link.close()
  assert [type(e) for e in threads.join()] == [base.StoreClosed]
  updater.close()
  with pytest.raises(base.StoreClosed):
    _update(updater, {1: 1.0})
  names = {thread.name for thread in threading.enumerate()}
  assert 'reverb-priorities-t' not in names
