"""Tests that sending and receiving end together, with the right error."""

import queue
import threading

import grpc
import pytest

from seedrl_jax.replay.reverb import transport
from seedrl_jax.replay.reverb.transport import stream as stream_lib

_PATIENCE = 300.0
_NAME = 'exchange-read'


def _error(code=grpc.StatusCode.NOT_FOUND, details='as told'):
  return transport.StreamError(code, details)


class _Call:
  """A scripted stream.

  Attributes:
    responses: to receive; None ends the stream, an exception is raised.
    sent: all messages.
    on_send: called with each.
    cancelled: set by `cancel`.
  """

  def __init__(self, *responses):
    self.responses: queue.SimpleQueue = queue.SimpleQueue()
    self.sent: list = []
    self.on_send = self.sent.append
    self.cancelled = threading.Event()
    for response in responses:
      self.responses.put(response)

  def send(self, parts) -> None:
    self.on_send(parts)

  def receive(self):
    response = self.responses.get(timeout=_PATIENCE)
    if isinstance(response, BaseException):
      raise response
    return response

  def cancel(self) -> None:
    self.cancelled.set()
    self.responses.put(_error(grpc.StatusCode.CANCELLED, 'cancelled here'))


class _Messages:
  """Messages that do not end before `end`."""

  def __init__(self, *messages, error: BaseException | None = None):
    self._messages = messages
    self._error = error
    self._ended = threading.Event()
    self.ends: list[str] = []

  def __iter__(self):
    yield from self._messages
    if self._error is not None:
      raise self._error
    assert self._ended.wait(_PATIENCE)

  def end(self) -> None:
    self.ends.append(threading.current_thread().name)
    self._ended.set()


def _run(call, messages, take=lambda response: None) -> None:
  """Runs an exchange; checks what holds for every end."""
  try:
    transport.exchange(call, messages, take, messages.end, _NAME)
  finally:
    assert messages.ends == [_NAME]
    assert call.cancelled.is_set()
    names = [thread.name for thread in threading.enumerate()]
    assert _NAME not in names


def test_error_of_take_is_raised():
  def refuse(response):
    raise OSError(response)

  with pytest.raises(OSError, match='a'):
    _run(_Call('a', 'b'), _Messages(), refuse)


@pytest.mark.parametrize('call_failed', [False, True])
def test_error_of_messages_is_raised(call_failed):
  call = _Call()

  def send(parts):
    if call_failed:
      call.responses.put(_error())
      assert call.cancelled.wait(_PATIENCE)

  call.on_send = send
  with pytest.raises(OSError, match='no more'):
    _run(call, _Messages([b'a'], error=OSError('no more')))


def test_failure_to_send_does_not_hide_what_the_server_says(monkeypatch):
  monkeypatch.setattr(stream_lib, '_GRACE', _PATIENCE)
  error = _error()
  call = _Call()
  taken = []

  def send(parts):
    # These arrive after sending has failed.
    for response in (1, 2, error):
      call.responses.put(response)
    raise _error(grpc.StatusCode.UNAVAILABLE)

  call.on_send = send
  with pytest.raises(transport.StreamError) as raised:
    _run(call, _Messages([b'a']), taken.append)
  assert raised.value is error
  assert taken == [1, 2]


def test_server_that_says_nothing_after_a_failure_is_given_up(monkeypatch):
  monkeypatch.setattr(stream_lib, '_GRACE', 0.0)
  call = _Call()

  def send(parts):
    raise _error(grpc.StatusCode.UNAVAILABLE)

  call.on_send = send
  with pytest.raises(transport.StreamError) as raised:
    _run(call, _Messages([b'a']))
  assert raised.value.code() == grpc.StatusCode.UNAVAILABLE


def test_call_that_ended_well_ends_what_is_being_sent():
  call = _Call()

  def send(parts):
    call.responses.put(None)
    assert call.cancelled.wait(_PATIENCE)
    raise _error(grpc.StatusCode.CANCELLED)

  call.on_send = send
  _run(call, _Messages([b'a'], [b'b']))
