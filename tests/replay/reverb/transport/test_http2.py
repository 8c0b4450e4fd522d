"""Tests of frames, and of sockets that send and receive in pieces."""

import contextlib
import socket

import numpy as np
import pytest

from seedrl_jax.replay.reverb.transport import http2

_PATIENCE = 300.0
_Kind, _Flag = http2.Kind, http2.Flag


def test_frame_is_what_the_standard_says():
  assert http2.frame(_Kind.PING, b'12345678', _Flag.ACK) == (
    b'\0\0\x08\x06\x01\0\0\0\x0012345678'
  )
  assert http2.header(_Kind.DATA, 0, 1, 0x123456) == (
    b'\x12\x34\x56\0\0\0\0\0\x01'
  )
  assert http2.window_update(1, 0x01020304) == (
    b'\0\0\x04\x08\0\0\0\0\x01\x01\x02\x03\x04'
  )
  values = {http2.Setting.ENABLE_PUSH: 0, http2.Setting.MAX_FRAME_SIZE: 70_000}
  assert http2.settings(values) == (
    b'\0\0\x0c\x04\0\0\0\0\0' + b'\0\x02\0\0\0\0' + b'\0\x05\0\x01\x11\x70'
  )


def test_pieces_are_slices_and_not_copies():
  first, second = np.arange(5, dtype=np.uint8), np.arange(5, 8, dtype=np.uint8)
  pieces = http2.Pieces([first.data, bytes([100]), second.data])
  taken: list[memoryview] = []
  for size in (2, 5, 0, 2):
    pieces.take(size, taken)
  assert [bytes(part) for part in taken] == [
    b'\0\x01',
    b'\x02\x03\x04',
    b'd',
    b'\x05',
    b'\x06\x07',
  ]
  first[0] = second[2] = 77
  assert (taken[0][0], taken[4][1]) == (77, 77)


def test_pieces_in_frames():
  pieces = http2.Pieces([b'abc', b'defgh'])
  assert b''.join(pieces.frames(7, largest=4)) == (
    b'\0\0\x04\0\0\0\0\0\x01abcd' + b'\0\0\x03\0\0\0\0\0\x01efg'
  )
  assert pieces.frames(0, largest=4) == []
  assert b''.join(pieces.frames(1, largest=4))[9:] == b'h'


class _Miser:
  """A socket that takes a few bytes at a time."""

  def __init__(self, size: int):
    self._size = size
    self.taken = b''
    self.most_buffers = 0

  def sendmsg(self, buffers) -> int:
    self.most_buffers = max(self.most_buffers, len(buffers))
    sent = b''.join(bytes(b) for b in buffers)[: self._size]
    self.taken += sent
    return len(sent)


@pytest.mark.parametrize('size', [1, 2, 3, 7, 600, 10**6])
def test_all_is_sent_however_little_is_taken_at_once(size):
  parts = [bytes([i % 251]) * (i % 4 + 1) for i in range(1300)]
  target = _Miser(size)
  http2.send_all(target, list(parts))
  assert target.taken == b''.join(parts)
  assert target.most_buffers == 512


@pytest.fixture(name='pair')
def pair_fixture():
  with contextlib.ExitStack() as stack:
    ends = [stack.enter_context(end) for end in socket.socketpair()]
    for end in ends:
      end.settimeout(_PATIENCE)
    yield ends


def _silent() -> None:
  raise AssertionError('there was no silence')


def test_reads_what_is_wanted_in_any_sizes(pair):
  ours, theirs = pair
  # More than the read-ahead, so that some reads use the socket in part.
  content = bytes(i % 253 for i in range(20_000))
  theirs.sendall(content)
  reader = http2.SocketReader(ours, _silent)
  got = reader.read(0)
  for size in (1, 9, 5000, 0, 4096, 1, 3000):
    got += reader.read(size)
  out = http2.uninitialized(20_000 - len(got))
  reader.read_into(out)
  assert got + bytes(out) == content


def test_reads_what_comes_byte_by_byte(pair, threads):
  ours, theirs = pair
  content = bytes(range(200))

  def trickle():
    for byte in content:
      theirs.sendall(bytes([byte]))

  threads.start(trickle)
  reader = http2.SocketReader(ours, _silent)
  assert reader.read(9) + reader.read(150) + reader.read(41) == content
  assert threads.join() == []


def test_what_was_read_stays(pair):
  ours, theirs = pair
  theirs.sendall(b'first' + b'other')
  reader = http2.SocketReader(ours, _silent)
  first = reader.read(5)
  other = http2.uninitialized(5)
  reader.read_into(other)
  theirs.sendall(b'-' * 5000)
  reader.read(5000)
  assert (first, bytes(other)) == (b'first', b'other')


@pytest.mark.parametrize('size', [0, 4, 5000])
def test_end_of_the_connection_is_an_error(pair, size):
  ours, theirs = pair
  theirs.sendall(bytes(size))
  theirs.close()
  reader = http2.SocketReader(ours, _silent)
  assert reader.read(size) == bytes(size)
  for wanted in (1, 9000):
    with pytest.raises(ConnectionResetError, match='was closed'):
      reader.read(wanted)


def test_reading_goes_on_after_silence(pair):
  ours, theirs = pair
  ours.settimeout(1e-3)
  silences = []

  def speak():
    silences.append(1)
    if len(silences) == 3:
      theirs.sendall(b'word')

  theirs.sendall(b'a ')
  assert http2.SocketReader(ours, speak).read(6) == b'a word'
  assert len(silences) >= 3


def test_error_in_silence_ends_the_read(pair):
  ours, _ = pair
  ours.settimeout(1e-3)

  def give_up():
    raise TimeoutError('long enough')

  with pytest.raises(TimeoutError, match='long enough'):
    http2.SocketReader(ours, give_up).read(1)
