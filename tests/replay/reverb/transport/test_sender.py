"""Tests of sending, also while receiving."""

import random
import threading

import grpc
import pytest

from seedrl_jax.replay.reverb import transport
from seedrl_jax.replay.reverb.transport import http2, sender
from tests.replay.reverb.transport import scripted_peer as peers

_CODE = grpc.StatusCode
# The initial window.
_FIRST = 65_535
_LARGEST = 2**31 - 1


def _bytes(size: int) -> bytes:
  return random.Random(size).randbytes(size)


def _exchange(script, *messages) -> None:
  """Sends messages while receiving, until the script ends the call."""

  def whole(peer):
    script(peer)
    peer.send(peers.RESPONSE, peers.OK)

  with peers.calling(whole) as call:
    sender = threading.Thread(
      target=lambda: [call.send(parts) for parts in messages], daemon=True
    )
    sender.start()
    assert call.receive() is None
    sender.join(peers.PATIENCE)
    assert not sender.is_alive()


def _nothing_more(peer: peers.Peer) -> None:
  """Checks that the client's next frame is not DATA."""
  peer.send(peers.ping(b'any more'))
  assert peer.next(peers.PING) == (peers.PING, peers.ACK, 0, b'any more')


def _allow(peer: peers.Peer, call: int = 0, connection: int = 0) -> None:
  for stream, size in ((1, call), (0, connection)):
    if size:
      peer.send(peers.window_update(size, stream))


def test_message_is_its_parts_one_after_the_other():
  parts = [b'', b'ab', b'', memoryview(b'cde'), b'f', b'']
  got = []

  def script(peer):
    peer.begin()
    got.extend(peer.data(11 + 5 + 5))

  _exchange(script, parts, [], [b'', b''])
  # Each message has its own frames, without flags.
  assert got == [peers.message(b'abcdef'), peers.message(b''), bytes(5)]


@pytest.mark.parametrize('limit', [16_384, 20_000, 2**24 - 1])
def test_frames_are_as_large_as_the_server_wants(limit):
  content = _bytes(2_500_000)
  stream = peers.message(content)
  got = []

  def script(peer):
    peer.begin(
      (peers.FRAME_SIZE, limit), (peers.WINDOW_SIZE, _LARGEST), (99, 1)
    )
    _allow(peer, connection=_LARGEST - _FIRST)
    got.extend(peer.data(len(stream)))

  pieces = [content[:7], content[7:30_000], content[30_000:]]
  _exchange(script, pieces)
  assert b''.join(got) == stream
  sizes = {len(payload) for payload in got}
  assert max(sizes) <= limit
  assert max(sizes) >= min(limit, 1 << 20) * 0.9


def test_frames_grow_and_shrink_in_the_middle_of_a_message():
  content = _bytes(400_000)
  stream = peers.message(content)
  got: list[bytes] = []
  largest = []

  def script(peer):
    peer.begin()
    left = len(stream)
    for limit in (16_384, 60_000, 16_384, 30_000):
      peer.send(peers.settings((peers.FRAME_SIZE, limit)))
      if got:
        peer.acknowledged()
      else:
        # The first acknowledgement comes amid the first data.
        got.extend(_data_around_a_frame(peer, _FIRST))
        left -= _FIRST
      size = min(left, 100_000)
      _allow(peer, size, size)
      frames = peer.data(size)
      largest.append(max(map(len, frames)) <= limit)
      got.extend(frames)
      left -= size
    assert left == 0

  _exchange(script, [content])
  assert b''.join(got) == stream
  assert largest == [True] * 4


def _data_around_a_frame(peer: peers.Peer, size: int) -> list[bytes]:
  """Returns `size` bytes of data; reads one acknowledgement among them."""
  frames: list[bytes] = []
  acknowledged = False
  while sum(map(len, frames)) < size or not acknowledged:
    got = peer.frame()
    if got.kind == peers.DATA:
      frames.append(got.payload)
    else:
      assert (got.kind, got.flags) == (peers.SETTINGS, peers.ACK)
      acknowledged = True
  assert sum(map(len, frames)) == size
  return frames


@pytest.mark.parametrize('limited', ['call', 'connection'])
def test_not_a_byte_more_than_allowed(limited):
  content = _bytes(100_000)
  stream = peers.message(content)
  got: list[bytes] = []

  def script(peer):
    peer.begin()
    other = 'connection' if limited == 'call' else 'call'
    _allow(peer, **{other: 10**6})
    got.extend(peer.data(_FIRST))
    left = len(stream) - _FIRST
    for size in (1, 2, 20_000, 5):
      _nothing_more(peer)
      _allow(peer, **{limited: size})
      got.extend(peer.data(size))
      left -= size
    _nothing_more(peer)
    _allow(peer, **{limited: 10**6})
    got.extend(peer.data(left))

  _exchange(script, [content])
  assert b''.join(got) == stream


def test_small_messages_count_too():
  messages = [[_bytes(i)] for i in range(500)]
  stream = b''.join(peers.message(parts[0]) for parts in messages)
  got: list[bytes] = []

  def script(peer):
    peer.begin()
    for i in range(0, len(stream), _FIRST):
      size = min(_FIRST, len(stream) - i)
      got.extend(peer.data(size))
      _nothing_more(peer)
      _allow(peer, size, size)

  _exchange(script, *messages)
  assert b''.join(got) == stream


@pytest.mark.parametrize('sent_before', [False, True])
def test_first_window_shrinks_and_grows(sent_before):
  content = _bytes(200_000)
  stream = peers.message(content)
  got: list[bytes] = []

  def take(peer, size):
    got.extend(peer.data(size))
    _nothing_more(peer)

  def change(peer, size):
    peer.send(peers.settings((peers.WINDOW_SIZE, size)))
    peer.acknowledged()

  def script(peer):
    if sent_before:
      peer.begin()
      _allow(peer, connection=10**6)
      take(peer, _FIRST)
    else:
      peer.begin((peers.WINDOW_SIZE, 0))
      _allow(peer, connection=10**6)
      _nothing_more(peer)
      change(peer, _FIRST)
      take(peer, _FIRST)
    # The window is now -64,535.
    change(peer, 1000)
    _nothing_more(peer)
    _allow(peer, call=_FIRST - 1000)
    _nothing_more(peer)
    _allow(peer, call=10)
    take(peer, 10)
    change(peer, 1500)
    take(peer, 500)
    change(peer, 0)
    _nothing_more(peer)
    change(peer, 1600)
    take(peer, 100)
    _allow(peer, call=10**6)
    got.extend(peer.data(len(stream) - sum(map(len, got))))

  _exchange(script, [content])
  assert b''.join(got) == stream


class _Held:
  """Blocks a thread at the end of a function until it is released."""

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
  """Data after acknowledged settings must be within them."""
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
    # The mark follows the settings.
    _send_held(call, content, held, threads)
  # 65,535 bytes of data in frames of 16,384.
  assert order == ['data'] * 4 + ['settings']


def _send_held(call, content: bytes, held, threads) -> None:
  """Sends while `held` blocks until the mark arrives; receives to the end."""
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
  # Within the system call, when no other thread may write.
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
    # A ping's answer would be read as the rest of the frame.
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
    # The peer reads only one frame until then.
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
