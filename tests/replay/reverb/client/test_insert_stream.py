"""Items sent, kept, and sent again."""

import contextlib
import threading

import grpc
import numpy as np
import pytest

from seedrl_jax.replay.reverb import errors
from seedrl_jax.replay.reverb.client import connection, insert_stream, items
from tests.patience import PATIENCE, wait_until
from tests.replay.reverb import fake_server


@pytest.fixture(name='open_stream')
def open_stream_fixture(server):
  with contextlib.ExitStack() as stack:

    def open_stream(max_in_flight=100):
      link = connection.Connection(server.address, PATIENCE)
      stack.callback(link.close)
      stream = insert_stream.InsertStream(link, 't', max_in_flight)
      stack.callback(stream.close)
      return stream

    yield open_stream


def _chunk(number: int = 0) -> items.Chunk:
  return items.encode_chunk([np.full((3, 2), number, np.uint8)])


def _item(*chunks: items.Chunk) -> items.Item:
  slices = [items.Slice(chunk, 0, 0, chunk.rows) for chunk in chunks]
  return items.make_item('t', 1.0, [items.ItemColumn(slices)])


def _insert(stream, *entries: items.Item, keep=()) -> None:
  stream.insert(lambda: items.Encoded(entries, {chunk.key for chunk in keep}))


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


def test_kept_chunk_is_sent_once(server, open_stream):
  stream = open_stream()
  a, b, c, never_sent = (_chunk(i) for i in range(4))
  first, second, third = _item(a, b), _item(b, c), _item(a)
  for item, keep in ((first, [a, b, never_sent]), (second, [c]), (third, [])):
    _insert(stream, item, keep=keep)
    stream.flush(PATIENCE)
  # The second request did not keep a, so it is sent again.
  assert _sent(server.inserts[0]) == [
    ({a.key, b.key}, [first.key], {a.key, b.key}),
    ({c.key}, [second.key], {c.key}),
    ({a.key}, [third.key], set()),
  ]


def test_large_requests_send_chunks_ahead(server, open_stream, monkeypatch):
  monkeypatch.setattr(insert_stream, '_REQUEST_BYTES', 150)
  stream = open_stream()
  chunks = [_chunk(i) for i in range(5)]
  _insert(stream, _item(*chunks))
  stream.flush(PATIENCE)
  sent = _sent(server.inserts[0])
  assert len(sent) > 1
  assert set().union(*(c for c, _, _ in sent)) == {c.key for c in chunks}
  assert [len(keys) for _, keys, _ in sent] == [0] * (len(sent) - 1) + [1]


def test_what_was_not_acknowledged_is_sent_again(server, open_stream):
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
  _insert(stream, first, second, keep=[b])
  _insert(stream, third)
  assert arrived.wait(PATIENCE)
  server.on_insert = lambda request: [item.key for item in request.items]
  stream.flush(PATIENCE)
  again = _sent(server.inserts[-1])
  assert [k for _, keys, _ in again for k in keys] == [first.key, third.key]
  # b came with the second, which is not sent again; the third brings it.
  assert set().union(*(c for c, _, _ in again)) == {a.key, b.key}


def test_in_flight_is_bounded(server, open_stream, threads):
  gate = threading.Semaphore(0)

  def acknowledge_later(request):
    for item in request.items:
      gate.acquire(timeout=PATIENCE)
      yield item.key

  server.on_insert = acknowledge_later
  stream = open_stream(max_in_flight=2)
  for number in range(2):
    _insert(stream, _item(_chunk(number)))
  stream.flush(0)
  threads.start(lambda: _insert(stream, _item(_chunk(2))))
  wait_until(lambda: stream.writers.waits()[1] == 1)
  assert len(stream._pending) == 2
  gate.release(3)
  assert threads.join() == []
  stream.flush(PATIENCE)


@pytest.mark.parametrize(
  'code', [grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION]
)
def test_refusal_reaches_everyone(server, open_stream, threads, code):
  gate = threading.Semaphore(0)

  def refuse(request):
    gate.acquire(timeout=PATIENCE)
    raise fake_server.Abort(code)

  server.on_insert = refuse
  stream = open_stream(max_in_flight=1)
  _insert(stream, _item(_chunk()))
  calls = [stream.flush, *2 * [lambda: _insert(stream, _item(_chunk()))]]
  for call in calls:
    threads.start(call)
  wait_until(lambda: stream.writers.waits()[1] == 2)
  gate.release()
  assert [type(e) for e in threads.join()] == [errors.RequestRefused] * 3
  for call in calls:
    with pytest.raises(errors.RequestRefused, match='table t'):
      call()


def test_a_failure_to_encode_reaches_whoever_comes_next(open_stream):
  stream = open_stream()
  stream.insert(lambda: items.encode_chunk([np.array(['a'])]))
  with pytest.raises(ValueError, match='Reverb cannot hold'):
    stream.flush()
