"""Tests of frames, and of sockets that send and receive in pieces."""

import contextlib
import socket

import numpy as np
import pytest

from seedrl_jax.replay.reverb.transport import http2


def test_frames_are_of_slices_and_not_of_copies():
  first, second = np.arange(5, dtype=np.uint8), np.arange(5, 8, dtype=np.uint8)
  pieces = http2.Pieces([first.data, bytes([100]), second.data])
  frames = pieces.frames(7, largest=4)
  assert b''.join(frames) == (
    b'\0\0\x04\0\0\0\0\0\x01\0\x01\x02\x03'
    + b'\0\0\x03\0\0\0\0\0\x01\x04\x64\x05'
  )
  first[0] = 77
  assert frames[1][0] == 77
  assert b''.join(pieces.frames(2, largest=4))[9:] == b'\x06\x07'


class _Miser:
  """A socket that takes a few bytes at a time."""

  def __init__(self, size: int):
    self._size = size
    self.taken = b''

  def sendmsg(self, buffers) -> int:
    assert len(buffers) <= 512
    sent = b''.join(bytes(b) for b in buffers)[: self._size]
    self.taken += sent
    return len(sent)


@pytest.mark.parametrize('size', [1, 3, 600, 10**6])
def test_all_is_sent_however_little_is_taken_at_once(size):
  parts = [bytes([i % 251]) * (i % 4 + 1) for i in range(1300)]
  target = _Miser(size)
  http2.send_all(target, list(parts))
  assert target.taken == b''.join(parts)


@pytest.fixture(name='pair')
def pair_fixture():
  with contextlib.ExitStack() as stack:
    ends = [stack.enter_context(end) for end in socket.socketpair()]
    for end in ends:
      end.settimeout(300.0)
    yield ends


def test_reads_what_is_wanted_in_any_sizes(pair):
  ours, theirs = pair
  # More than the read-ahead, so that some reads use the socket in part.
  content = bytes(i % 253 for i in range(20_000))
  theirs.sendall(content)
  reader = http2.SocketReader(ours)
  got = reader.read(0)
  for size in (1, 9, 5000, 0, 4096, 1, 3000):
    got += reader.read(size)
  out = http2.uninitialized(20_000 - len(got))
  reader.read_into(out)
  assert got + bytes(out) == content


@pytest.mark.parametrize('size', [0, 4, 5000])
def test_end_of_the_connection_is_an_error(pair, size):
  ours, theirs = pair
  theirs.sendall(bytes(size))
  theirs.close()
  reader = http2.SocketReader(ours)
  assert reader.read(size) == bytes(size)
  for wanted in (1, 9000):
    with pytest.raises(ConnectionResetError, match='was closed'):
      reader.read(wanted)
