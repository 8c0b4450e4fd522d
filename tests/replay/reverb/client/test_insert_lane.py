"""Items sent, kept, and sent again."""

import contextlib
import threading

import grpc
import numpy as np
import pytest

from seedrl_jax.replay import base
from seedrl_jax.replay.reverb.client import (
  connection,
  errors,
  insert_lane,
  items,
)
from seedrl_jax.replay.reverb.transport import stream as stream_lib
from tests.replay.reverb import fake_server

# Bounds only failing tests.
_PATIENCE = 300.0


@pytest.fixture(name='patient_exchange')
def patient_exchange_fixture(monkeypatch) -> None:
  """Never gives up a message that came before an error."""
  monkeypatch.setattr(stream_lib, '_GRACE', _PATIENCE)


@pytest.fixture(name='open_stream')
def open_stream_fixture(server):
  with contextlib.ExitStack() as stack:

    def open_stream(*args, **kwargs):
      link = connection.Connection(server.address, _PATIENCE)
      stack.callback(link.close)
      stream = insert_lane.InsertStream(link, 't', *args, **kwargs)
      stack.callback(stream.close)
      return stream

    yield open_stream


def _chunk(number: int = 0) -> items.Chunk:
  return items.encode_chunk([np.full((3, 2), number, np.uint8)])


def _item(*chunks: items.Chunk) -> items.Item:
  slices = [items.Slice(chunk, 0, 0, chunk.rows) for chunk in chunks]
  return items.make_item('t', 1.0, [items.ItemColumn(slices)])


def _sent(requests) -> list[tuple[set[int], list[int], set[int]]]:
  """Returns the keys of chunks, items and kept chunks of each request."""
  return [
    (
      {chunk.chunk_key for chunk in request.chunks},
      [item.key for item in request.items],
      set(request.keep_chunk_keys),
    )
    for request in requests
  ]


def test_items_arrive_in_order_and_are_acknowledged(server, open_stream):
  acknowledged: list[int] = []
  stream = open_stream(acknowledged.extend)
  entries = [_item(_chunk(i)) for i in range(20)]
  for entry in entries:
    stream.insert([entry])
  stream.flush(_PATIENCE)
  keys = [entry.key for entry in entries]
  assert [k for _, keys, _ in _sent(server.inserts[0]) for k in keys] == keys
  assert acknowledged == keys
  assert (stream.in_flight, stream._pending.num_bytes) == (0, 0)


def test_flush_waits_until_the_last_acknowledgement_was_told(open_stream):
  under_way = []
  stream = open_stream(lambda _: under_way.append(stream.in_flight))
  stream.insert([_item(_chunk())])
  stream.flush(_PATIENCE)
  # During the callback the item still counts as in flight.
  assert under_way == [1]


def test_many_items_in_one_request(server, open_stream):
  stream = open_stream()
  chunk = _chunk()
  entries = [_item(chunk) for _ in range(5)]
  stream.insert(entries)
  stream.flush(_PATIENCE)
  assert _sent(server.inserts[0]) == [
    ({chunk.key}, [entry.key for entry in entries], set())
  ]


def test_kept_chunk_is_sent_once(server, open_stream):
  stream = open_stream()
  a, b, c = (_chunk(i) for i in range(3))
  first, second, third = _item(a, b), _item(b, c), _item(a)
  for item, keep in ((first, [a, b]), (second, [c]), (third, [])):
    stream.insert([item], keep)
    stream.flush(_PATIENCE)
  # The second request did not keep a, so it is sent again.
  assert _sent(server.inserts[0]) == [
    ({a.key, b.key}, [first.key], {a.key, b.key}),
    ({c.key}, [second.key], {c.key}),
    ({a.key}, [third.key], set()),
  ]


def test_chunk_that_the_server_does_not_hold_is_not_kept(server, open_stream):
  stream = open_stream()
  stream.insert([_item(_chunk())], keep=[_chunk()])
  stream.flush(_PATIENCE)
  assert not server.inserts[0][0].keep_chunk_keys


def test_large_requests_send_chunks_ahead(server, open_stream, monkeypatch):
  monkeypatch.setattr(insert_lane, '_REQUEST_BYTES', 150)
  stream = open_stream()
  chunks = [_chunk(i) for i in range(5)]
  stream.insert([_item(*chunks)])
  stream.flush(_PATIENCE)
  sent = _sent(server.inserts[0])
  assert len(sent) > 1
  assert set().union(*(c for c, _, _ in sent)) == {c.key for c in chunks}
  assert [len(keys) for _, keys, _ in sent] == [0] * (len(sent) - 1) + [1]


def test_what_was_not_acknowledged_is_sent_again(
  server, open_stream, patient_exchange
):
  server.on_insert = lambda request: []
  stream = open_stream()
  a, b = _chunk(1), _chunk(2)
  first, second, third = _item(a), _item(a, b), _item(b)
  arrived = threading.Event()

  def acknowledge_the_second(request):
    if third.key in [item.key for item in request.items]:
      arrived.set()
      yield second.key
      raise fake_server.Abort(grpc.StatusCode.UNAVAILABLE)

  server.on_insert = acknowledge_the_second
  stream.insert([first, second], keep=[b])
  stream.insert([third])
  assert arrived.wait(_PATIENCE)
  server.on_insert = lambda request: [item.key for item in request.items]
  stream.flush(_PATIENCE)
  again = _sent(server.inserts[-1])
  assert [k for _, keys, _ in again for k in keys] == [first.key, third.key]
  # b came with the second, which is not sent again; the third brings it.
  assert set().union(*(c for c, _, _ in again)) == {a.key, b.key}
  assert stream.in_flight == 0


def test_server_that_restarts_gets_the_rest(server, open_stream):
  server.on_insert = lambda request: []
  stream = open_stream()
  entries = [_item(_chunk(i)) for i in range(10)]
  for entry in entries:
    stream.insert([entry])
  server.stop()
  server.on_insert = lambda request: [item.key for item in request.items]
  server.start()
  stream.flush(_PATIENCE)
  again = [k for _, keys, _ in _sent(server.inserts[-1]) for k in keys]
  assert again == [entry.key for entry in entries]


@pytest.mark.parametrize('bound', ['max_items', 'max_bytes'])
def test_in_flight_is_bounded(server, open_stream, threads, monkeypatch, bound):
  gate = fake_server.Gate()

  def acknowledge_later(request):
    for item in request.items:
      gate.wait()
      yield item.key

  server.on_insert = acknowledge_later
  entries = [_item(_chunk(i)) for i in range(3)]
  size = sum(len(entry.chunks[0].wire) for entry in entries[:2])
  if bound == 'max_bytes':
    monkeypatch.setattr(insert_lane, '_MAX_BYTES', size)
  stream = open_stream(max_items=2 if bound == 'max_items' else 1000)
  stream.insert([entries[0]])
  stream.insert([entries[1]])
  assert (stream.in_flight, stream._pending.num_bytes) == (2, size)
  with pytest.raises(base.RateLimited, match='flush of t'):
    stream.flush(0)
  most = []

  def insert():
    stream.insert([entries[2]])
    most.append(stream.in_flight)

  threads.start(insert)
  for _ in range(3):
    gate.open()
  assert threads.join() == []
  stream.flush(_PATIENCE)
  # It waited for one of the others.
  assert most[0] <= 2
  assert stream.in_flight == 0


def test_insert_above_the_bounds_passes_alone(open_stream, monkeypatch):
  monkeypatch.setattr(insert_lane, '_MAX_BYTES', 1)
  stream = open_stream(max_items=1)
  stream.insert([_item(_chunk(i)) for i in range(3)])
  stream.flush(_PATIENCE)
  assert stream.in_flight == 0


def test_shared_chunk_counts_once(server, open_stream):
  server.on_insert = lambda request: []
  stream = open_stream()
  chunk = _chunk()
  stream.insert([_item(chunk), _item(chunk)])
  stream.insert([_item(chunk)])
  assert stream._pending.num_bytes == len(chunk.wire)


@pytest.mark.parametrize(
  ('code', 'kind'),
  [
    (grpc.StatusCode.NOT_FOUND, errors.UnknownTable),
    (grpc.StatusCode.FAILED_PRECONDITION, errors.RequestRefused),
  ],
)
def test_refusal_reaches_whoever_comes_next(server, open_stream, code, kind):
  def refuse(request):
    raise fake_server.Abort(code)

  server.on_insert = refuse
  stream = open_stream()
  stream.insert([_item(_chunk())])
  for call in (stream.flush, lambda: stream.insert([_item(_chunk())])):
    with pytest.raises(kind, match='table t'):
      call()


def test_close_wakes_everybody(server, open_stream, threads):
  entered = threading.Event()

  def never(request):
    entered.set()
    return []

  server.on_insert = never
  stream = open_stream(max_items=1)
  stream.insert([_item(_chunk())])
  assert entered.wait(_PATIENCE)
  threads.start(stream.flush)
  threads.start(lambda: stream.insert([_item(_chunk())]))
  stream.close()
  assert [type(e) for e in threads.join()] == [base.StoreClosed] * 2
  # Threads that gRPC holds up end by themselves.
  threads.until(
    lambda: (
      not [
        t for t in threading.enumerate() if t.name.startswith('reverb-insert')
      ]
    )
  )
