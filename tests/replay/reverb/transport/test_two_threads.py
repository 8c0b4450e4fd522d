"""Tests of a call that one thread sends on while another receives."""

import threading

import grpc
import pytest

from seedrl_jax.replay.reverb import transport
from seedrl_jax.replay.reverb.transport import http2, sender
from tests.replay.reverb.transport import scripted_peer as peers

_CODE = grpc.StatusCode
# Bytes that a call may send before the server says more.
_FIRST = 65_535
_LARGEST = 2**31 - 1


class _Held:
  """Holds a thread up at the end of a function until it is let go."""

  def __init__(self, function):
    self._function = function
    self.reached, self.go_on = threading.Event(), threading.Event()

  def __call__(self, *args):
    result = self._function(*args)
    self.reached.set()
    assert self.go_on.wait(peers.PATIENCE)
    return result


def test_room_is_not_taken_back_from_what_is_about_to_be_sent(
  monkeypatch, threads
):
  """Once settings are acknowledged, what comes must be within them."""
  content = bytes(100_000)
  order = []

  def script(peer):
    peer.begin()
    assert held.reached.wait(peers.PATIENCE)
    peer.send(
      peers.settings((peers.WINDOW_SIZE, 10)),
      peers.RESPONSE,
      peers.data(peers.message(b'mark')),
    )
    while order.count('data') < 4 or 'settings' not in order:
      kind = peer.frame().kind
      order.append('data' if kind == peers.DATA else 'settings')
    peer.send(peers.OK)

  held = _Held(sender.SendWindow.take)
  monkeypatch.setattr(sender.SendWindow, 'take', lambda *args: held(*args))
  with peers.calling(script) as call:
    # The mark comes after the settings.
    _send_held(call, content, held, threads)
  # 65,535 bytes of data in frames of 16,384.
  assert order == ['data'] * 4 + ['settings']


def _send_held(call, content: bytes, held, threads) -> None:
  """Sends what is held until the mark has come; receives to the end."""
  threads.start(lambda: _send_in_vain(call, content))
  assert call.receive() == b'mark'
  held.go_on.set()
  assert call.receive() is None
  assert threads.join() == []


def _send_in_vain(call, *parts: bytes) -> None:
  with pytest.raises(transport.StreamError):
    call.send(parts)


def test_ping_is_answered_in_the_middle_of_a_message(monkeypatch, threads):
  content = bytes(1 << 20)
  order = []
  # In the midst of the system call, where nobody else may write.
  held = _Held(lambda *_: None)
  send_all = http2.send_all
  monkeypatch.setattr(
    http2, 'send_all', lambda *args: (held(), send_all(*args))
  )

  def script(peer):
    peer.begin()
    assert held.reached.wait(peers.PATIENCE)
    mark = peers.data(peers.message(b'mark'))
    peer.send(peers.ping(b'midst...'), peers.RESPONSE, mark)
    while not order or order[-1].kind == peers.DATA:
      order.append(peer.frame())
    peer.send(peers.OK)

  with peers.calling(script) as call:
    _send_held(call, content, held, threads)
  assert sum(len(f.payload) for f in order[:-1]) == _FIRST
  assert order[-1] == (peers.PING, peers.ACK, 0, b'midst...')


def test_nothing_follows_a_frame_that_was_cut_off(monkeypatch):
  def fail(target, buffers):
    target.sendall(buffers[0])
    raise TimeoutError('the server takes nothing')

  monkeypatch.setattr(http2, 'send_all', fail)

  def script(peer):
    peer.begin()
    assert len(peer.read(9)) == 9
    peer.send(peers.ping(b'cut off?'), peers.RESPONSE, peers.OK)
    # Its answer would be taken for what is missing.
    assert peer.socket.recv(1) == b''

  with peers.calling(script) as call:
    _send_in_vain(call, b'content')
    assert call.receive() is None


def test_pings_that_cannot_be_answered_do_not_pile_up(monkeypatch, threads):
  held = _Held(lambda *_: None)
  monkeypatch.setattr(http2, 'send_all', held)

  def script(peer):
    peer.begin()
    assert held.reached.wait(peers.PATIENCE)
    peer.send(*[peers.ping(b'too many')] * 2000)

  with peers.calling(script) as call:
    threads.start(lambda: _send_in_vain(call, bytes(10**6)))
    with pytest.raises(transport.StreamError) as raised:
      call.receive()
    assert raised.value.code() == _CODE.INTERNAL
    assert 'without end' in raised.value.details()
    call.cancel()
    held.go_on.set()
    assert threads.join() == []


def test_status_ends_a_message_that_waits_for_room(threads):
  def script(peer):
    peer.begin()
    peer.data(_FIRST)
    peer.send(peers.trailers(status='200', grpc_status='5', grpc_message='t'))
    peer.drain()

  with peers.calling(script) as call:
    threads.start(lambda: _send_in_vain(call, bytes(10**6)))
    with pytest.raises(transport.StreamError) as raised:
      call.receive()
    assert (raised.value.code(), raised.value.details()) == (
      _CODE.NOT_FOUND,
      't',
    )
    assert threads.join() == []
    _send_in_vain(call, b'later')


@pytest.mark.parametrize('waits_for', ['room', 'the system'])
def test_cancel_ends_a_message_under_way(threads, waits_for):
  sending = threading.Event()

  def script(peer):
    peer.begin((peers.WINDOW_SIZE, _LARGEST))
    if waits_for == 'the system':
      peer.send(peers.window_update(_LARGEST - _FIRST, 0))
    peer.send(peers.RESPONSE, peers.data(peers.message(b'go on')))
    peer.next(peers.DATA)
    sending.set()
    # Until then it reads no more than the frame.
    assert cancelled.wait(peers.PATIENCE)

  cancelled = threading.Event()
  with peers.calling(script) as call:
    assert call.receive() == b'go on'

    def send():
      with pytest.raises(transport.StreamError) as raised:
        call.send([bytes(1 << 26)])
      assert raised.value.code() == _CODE.CANCELLED

    threads.start(send)
    assert sending.wait(peers.PATIENCE)
    call.cancel()
    assert threads.join() == []
    cancelled.set()
