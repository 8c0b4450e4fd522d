"""Tests of what a call sends: whole messages, and never more than allowed."""

import random
import threading

import pytest

from tests.replay.reverb.transport import scripted_peer as peers

_FIRST = 65_535
_LARGEST = 2**31 - 1


def _bytes(size: int) -> bytes:
  return random.Random(size).randbytes(size)


def _exchange(script, *messages) -> None:
  """Sends messages while it receives, until the script ends the call."""

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
  """Sees that what the client sends next is no data."""
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
  # A message's frames are its own, and have no flags.
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
        # The first comes among the first data.
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
  """Returns `size` bytes of data, and takes one acknowledgement meanwhile."""
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
    # 64,535 bytes below zero.
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
