"""Tests that reading ends with its stream, even where gRPC's read does not."""

import threading

import grpc
import pytest

from seedrl_jax.replay.reverb import reader

# Only for tests that have already failed.
_PATIENCE = 300.0


class _Call(grpc.RpcError):
  """A stream of which tests say what it gives, when it ends, and how."""

  def __init__(self, responses=(), stuck: bool = False):
    super().__init__()
    self._responses = iter(responses)
    self._stuck = stuck
    self._callbacks: list = []
    self._code: grpc.StatusCode | None = None
    self.never = threading.Event()

  def code(self) -> grpc.StatusCode | None:
    return self._code

  def add_done_callback(self, callback) -> None:
    self._callbacks.append(callback)
    if self._stuck:
      self.end(grpc.StatusCode.UNAVAILABLE)

  def end(self, code: grpc.StatusCode) -> None:
    self._code = code
    for callback in self._callbacks:
      callback(self)

  def __iter__(self):
    return self

  def __next__(self) -> bytes:
    if self._stuck:
      self.never.wait()
    response = next(self._responses, None)
    if response is not None:
      return response
    self.end(self._code or grpc.StatusCode.OK)
    if self._code is grpc.StatusCode.OK:
      raise StopIteration
    raise self


@pytest.fixture(autouse=True)
def _no_grace(monkeypatch):
  monkeypatch.setattr(reader, '_GRACE', 0.0)


def test_responses_are_taken_in_order():
  taken: list[bytes] = []
  reader.Reader(_Call([b'a', b'b']), taken.append, 'r').run()
  assert taken == [b'a', b'b']


def test_error_of_the_stream_is_raised_after_its_responses():
  call = _Call([b'a'])
  call.end(grpc.StatusCode.UNAVAILABLE)
  taken: list[bytes] = []
  with pytest.raises(grpc.RpcError) as raised:
    reader.Reader(call, taken.append, 'r').run()
  assert raised.value is call
  assert taken == [b'a']


def test_error_of_the_taker_is_raised():
  def refuse(response):
    raise OSError(response)

  with pytest.raises(OSError, match='a'):
    reader.Reader(_Call([b'a']), refuse, 'r').run()


def test_read_that_never_returns_is_given_up():
  call = _Call([b'late'], stuck=True)
  taken: list[bytes] = []
  with pytest.raises(grpc.RpcError) as raised:
    reader.Reader(call, taken.append, 'stuck-read').run()
  assert raised.value is call
  # Should it return after all, nobody takes what it brings.
  (thread,) = [t for t in threading.enumerate() if t.name == 'stuck-read']
  call.never.set()
  thread.join(_PATIENCE)
  assert not thread.is_alive()
  assert taken == []


def test_taker_that_waits_is_not_given_up(threads, monkeypatch):
  call = _Call([b'a', b'b'])
  taking, go_on = threading.Event(), threading.Event()
  taken: list[bytes] = []

  def take(response):
    taking.set()
    assert go_on.wait(_PATIENCE)
    taken.append(response)

  threads.start(reader.Reader(call, take, 'r').run)
  assert taking.wait(_PATIENCE)
  call.end(grpc.StatusCode.OK)
  # From here on it may be slow between two responses.
  monkeypatch.setattr(reader, '_GRACE', _PATIENCE)
  go_on.set()
  assert threads.join() == []
  assert taken == [b'a', b'b']
