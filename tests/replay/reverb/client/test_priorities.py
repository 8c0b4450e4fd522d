"""How priorities are collected and sent."""

import contextlib
import threading

import grpc
import numpy as np
import pytest

from seedrl_jax.replay import base
from seedrl_jax.replay.reverb.client import connection, errors, priorities
from seedrl_jax.replay.reverb.proto import reverb_pb2
from tests.replay.reverb import fake_server

# Bounds only failing tests.
_PATIENCE = 300.0


@pytest.fixture(name='link')
def link_fixture(server):
  link = connection.Connection(server.address, _PATIENCE)
  yield link
  link.close()


@pytest.fixture(name='make_updater')
def make_updater_fixture(link):
  with contextlib.ExitStack() as stack:

    def make_updater():
      updater = priorities.PriorityUpdater(link, 't')
      stack.callback(updater.close)
      # Closed first, as an updater waits for the call under way.
      stack.callback(link.close)
      return updater

    yield make_updater


def _update(updater, values: dict[int, float]) -> None:
  keys = np.array(list(values), np.uint64)
  updater.update(keys, np.array(list(values.values())))


def _sent(server) -> list[dict[int, float]]:
  return [{u.key: u.priority for u in r.updates} for _, r in server.calls]


class _Held:
  """Holds each call back until the test releases it."""

  def __init__(self, server: fake_server.FakeServer):
    self.entered = threading.Semaphore(0)
    self._gate = fake_server.Gate()
    server.on_call['MutatePriorities'] = self._answer

  def _answer(self, request):
    self.entered.release()
    self._gate.wait()
    return reverb_pb2.Empty()

  def let_go(self, calls: int) -> None:
    for _ in range(calls):
      self._gate.open()


def test_priorities_are_sent(server, make_updater):
  updater = make_updater()
  _update(updater, {1: 0.5, 2**64 - 1: 2.0})
  updater.flush()
  assert _sent(server) == [{1: 0.5, 2**64 - 1: 2.0}]
  assert server.calls[0][1].table == 't'


def test_last_priority_of_a_key_counts(server, make_updater):
  held = _Held(server)
  updater = make_updater()
  _update(updater, {1: 1.0})
  assert held.entered.acquire(timeout=_PATIENCE)
  _update(updater, {2: 1.0, 3: 1.0})
  _update(updater, {2: 5.0})
  updater.update(np.array([4, 4], np.uint64), np.array([1.0, 7.0]))
  held.let_go(2)
  updater.flush()
  assert _sent(server) == [{1: 1.0}, {2: 5.0, 3: 1.0, 4: 7.0}]


def test_a_call_is_of_limited_size(server, make_updater, monkeypatch):
  monkeypatch.setattr(priorities, '_KEYS_PER_CALL', 2)
  updater = make_updater()
  _update(updater, dict.fromkeys(range(1, 6), 1.0))
  updater.flush()
  assert [len(update) for update in _sent(server)] == [2, 2, 1]


def test_waiting_priorities_are_bounded(
  server, make_updater, threads, monkeypatch
):
  monkeypatch.setattr(priorities, '_MAX_PENDING', 2)
  held = _Held(server)
  updater = make_updater()
  _update(updater, {1: 1.0})
  assert held.entered.acquire(timeout=_PATIENCE)
  _update(updater, {2: 1.0, 3: 1.0})
  threads.start(lambda: _update(updater, {4: 1.0}))
  threads.until(lambda: updater._changed._waiters)
  held.let_go(3)
  assert threads.join() == []
  updater.flush()
  assert _sent(server) == [{1: 1.0}, {2: 1.0, 3: 1.0}, {4: 1.0}]


def test_failure_reaches_whoever_comes_next(server, make_updater):
  def refuse(request):
    raise fake_server.Abort(grpc.StatusCode.NOT_FOUND)

  server.on_call['MutatePriorities'] = refuse
  updater = make_updater()
  _update(updater, {1: 1.0})
  for call in (updater.flush, lambda: _update(updater, {1: 1.0})):
    with pytest.raises(errors.UnknownTable, match='no table t'):
      call()


def test_close_of_the_connection_wakes_everybody(
  server, link, make_updater, threads, monkeypatch
):
  monkeypatch.setattr(priorities, '_MAX_PENDING', 1)
  held = _Held(server)
  updater = make_updater()
  _update(updater, {1: 1.0})
  assert held.entered.acquire(timeout=_PATIENCE)
  _update(updater, {2: 1.0})
  threads.start(updater.flush)
  threads.start(lambda: _update(updater, {3: 1.0}))
  link.close()
  assert [type(e) for e in threads.join()] == [base.StoreClosed] * 2
  held.let_go(1)


def test_nothing_passes_a_closed_updater(make_updater):
  updater = make_updater()
  updater.close()
  for call in (updater.flush, lambda: _update(updater, {1: 1.0})):
    with pytest.raises(base.StoreClosed, match='priorities in t'):
      call()
  assert not [
    t for t in threading.enumerate() if t.name.startswith('reverb-priorities')
  ]
