"""Tests that sending and receiving end together, with the right error."""

import contextlib
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
    sent: all messages.
    on_send: called with each.
    cancelled: set by `cancel`.
  """

  def __init__(self, *responses):
    self._responses: queue.SimpleQueue = queue.SimpleQueue()
    self.sent: list = []
    self.on_send = self.sent.append
    self.cancelled = threading.Event()
    self.give(*responses)

  def give(self, *responses) -> None:
    """Adds responses; None ends the stream, an exception is raised."""
    for response in responses:
      self._responses.put(response)

  def send(self, parts) -> None:
    self.on_send(parts)

  def receive(self):
    response = self._responses.get(timeout=_PATIENCE)
    if isinstance(response, BaseException):
      raise response
    return response

  def cancel(self) -> None:
    self.cancelled.set()
    # Drop responses that have not been received yet.
    with contextlib.suppress(queue.Empty):
      while True:
        self._responses.get_nowait()
    self.give(_error(grpc.StatusCode.CANCELLED, 'cancelled here'))


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


def test_responses_are_taken_in_order_by_another_thread():
  taken = []

  def take(response):
    taken.append((response, threading.current_thread().name))

  _run(_Call(1, 2, 3, None), _Messages(), take)
  assert taken == [(i, _NAME) for i in (1, 2, 3)]


def test_messages_are_sent_in_order_by_the_caller():
  call = _Call()
  senders = set()

  def send(parts):
    senders.add(threading.current_thread())
    call.sent.append(parts)
    if len(call.sent) == 3:
      call.give(None)

  call.on_send = send
  _run(call, _Messages([b'a'], [b'b', b'c'], []))
  assert call.sent == [[b'a'], [b'b', b'c'], []]
  assert senders == {threading.current_thread()}


def test_both_go_on_at_once():
  call = _Call()
  call.on_send = lambda parts: call.give(parts)
  taken = []

  def take(response):
    taken.append(response)
    if len(taken) == 100:
      call.give(None)

  _run(call, _Messages(*range(100)), take)
  assert taken == list(range(100))


def test_error_of_the_call_is_raised_after_its_responses():
  error = _error()
  taken = []
  with pytest.raises(transport.StreamError) as raised:
    _run(_Call(1, 2, error), _Messages(), taken.append)
  assert raised.value is error
  assert taken == [1, 2]


def test_error_of_take_is_raised():
  def refuse(response):
    raise OSError(response)

  with pytest.raises(OSError, match='a'):
    _run(_Call('a', 'b'), _Messages(), refuse)


def test_error_of_messages_is_raised():
  with pytest.raises(OSError, match='no more'):
    _run(_Call(), _Messages([b'a'], error=OSError('no more')))


def test_error_of_messages_is_raised_though_the_call_failed_too():
  call = _Call()

  def send(parts):
    call.give(_error())
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
    # Arrives after sending has failed.
    call.give(1, 2, error)
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
    call.give(None)
    assert call.cancelled.wait(_PATIENCE)
    raise _error(grpc.StatusCode.CANCELLED)

  call.on_send = send
  _run(call, _Messages([b'a'], [b'b']))


def test_cancel_ends_both(threads):
  call, messages = _Call(), _Messages()
  raised = []

  def run():
    with pytest.raises(transport.StreamError) as info:
      _run(call, messages)
    raised.append(info.value.code())

  threads.start(run)
  call.cancel()
  assert threads.join() == []
  assert raised == [grpc.StatusCode.CANCELLED]


def test_messages_that_run_out_cancel_the_call():
  call = _Call()
  with pytest.raises(transport.StreamError) as raised:
    transport.exchange(call, [[b'a']], lambda _: None, lambda: None, _NAME)
  assert raised.value.code() == grpc.StatusCode.CANCELLED
  assert call.sent == [[b'a']]
