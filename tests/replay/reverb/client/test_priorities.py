"""How priorities are sent."""

import threading

import grpc
import numpy as np
import pytest

from seedrl_jax.replay import base, blocks
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


@pytest.fixture(name='table')
def table_fixture(link, toy):
  layout = blocks.UnrollLayout(toy.spec())
  shared = tables.Shared(link, layout, map)
  table = tables.ReverbReplay(toy.items(), shared, blocks.BlockPool(layout, 1))
  yield table
  # Otherwise the table would wait for the call under way.
  link.close()
  table.close()


def _update(table, *updates: tuple[int, float]) -> None:
  keys, priorities = zip(*updates, strict=True)
  table.update_priorities(np.array(keys, np.uint64), np.array(priorities))


def test_last_priority_of_a_key_counts(server, table):
  _update(table, (1, 1.0))
  _update(table, (2, 5.0), (4, 1.0), (4, 7.0), (2**64 - 1, 2.0))
  table.flush()
  sent = [{u.key: u.priority for u in r.updates} for _, r in server.calls]
  assert sent == [{1: 1.0}, {2: 5.0, 4: 7.0, 2**64 - 1: 2.0}]
  assert {request.table for _, request in server.calls} == {'t'}


def test_failure_reaches_whoever_comes_next(server, table):
  codes = iter([grpc.StatusCode.NOT_FOUND])

  def refuse_once(request):
    if code := next(codes, None):
      raise fake_server.Abort(code)
    return reverb_pb2.Empty()

  server.on_call['MutatePriorities'] = refuse_once
  _update(table, (1, 1.0))
  for call in (table.flush, lambda: _update(table, (1, 1.0)), table.flush):
    with pytest.raises(errors.RequestRefused, match='no table t'):
      call()


def test_close_of_the_connection_wakes_everybody(server, link, table, threads):
  arrived, may_go = threading.Semaphore(0), threading.Semaphore(0)

  def answer(request):
    arrived.release()
    may_go.acquire(timeout=PATIENCE)
    return reverb_pb2.Empty()

  server.on_call['MutatePriorities'] = answer
  _update(table, (1, 1.0))
  assert arrived.acquire(timeout=PATIENCE)
  threads.start(table.flush)
  link.close()
  assert [type(e) for e in threads.join()] == [base.StoreClosed]
  table.close()
  may_go.release()
  with pytest.raises(base.StoreClosed):
    _update(table, (1, 1.0))
  names = {thread.name for thread in threading.enumerate()}
  assert 'reverb-priorities-t' not in names
