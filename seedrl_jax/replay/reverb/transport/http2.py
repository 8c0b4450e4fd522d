"""HTTP/2 frames for a connection with one gRPC stream (RFC 9113, 4 and 6)."""

import collections
import enum
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from seedrl_jax.replay.reverb.transport import stream as stream_lib

PREFACE = b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'
HEADER_BYTES = 9
# The connection's only stream.
STREAM = 1
# Initial and largest flow-control window and frame.
FIRST_WINDOW, LARGEST_WINDOW = 65_535, 2**31 - 1
FIRST_FRAME_BYTES, LARGEST_FRAME_BYTES = 16_384, 2**24 - 1

# Limit of one `sendmsg` call.
_MOST_BUFFERS = 512

_SETTING = struct.Struct('>HI')
_NUMBER = struct.Struct('>I')
# Bytes read beyond the wanted ones, to get the next frame's header in the same
# call. They are copied once more, so few.
_READ_AHEAD = 4096


class ProtocolError(ValueError):
  """The peer violates HTTP/2."""


class Kind(enum.IntEnum):
  """The frame types that we use; others are ignored."""

  DATA = 0
  HEADERS = 1
  RST_STREAM = 3
  SETTINGS = 4
  PING = 6
  GOAWAY = 7
  WINDOW_UPDATE = 8


class Flag(enum.IntFlag):
  """Frame flags; ACK and END_STREAM belong to different types."""

  ACK = 0x1
  END_STREAM = 0x1
  END_HEADERS = 0x4
  PADDED = 0x8
  PRIORITY = 0x20


class Setting(enum.IntEnum):
  """The settings that we use."""

  ENABLE_PUSH = 2
  INITIAL_WINDOW_SIZE = 4
  MAX_FRAME_SIZE = 5


class FrameHeader(NamedTuple):
  """A frame's header; `size` is the payload's in bytes."""

  size: int
  kind: int
  flags: int
  stream: int


def header(kind: Kind, flags: int, stream: int, size: int) -> bytes:
  """Returns a frame's nine header bytes."""
  return _NUMBER.pack(size << 8 | kind) + bytes((flags,)) + _NUMBER.pack(stream)


def frame(kind: Kind, payload: bytes, flags: int = 0, stream: int = 0) -> bytes:
  """Returns a frame, header and payload."""
  return header(kind, flags, stream, len(payload)) + payload


def settings(values: Mapping[Setting, int]) -> bytes:
  """Returns a SETTINGS frame."""
  parts = [_SETTING.pack(key, value) for key, value in values.items()]
  return frame(Kind.SETTINGS, b''.join(parts))


def window_update(stream: int, increment: int) -> bytes:
  """Returns a frame that lets the peer send `increment` more bytes."""
  return frame(Kind.WINDOW_UPDATE, _NUMBER.pack(increment), stream=stream)


def parse_header(content: bytes) -> FrameHeader:
  """Parses nine header bytes."""
  size_and_kind, flags, stream = struct.unpack('>IBI', content)
  return FrameHeader(
    size_and_kind >> 8, size_and_kind & 0xFF, flags, stream & LARGEST_WINDOW
  )


def parse_settings(payload: bytes) -> Iterator[tuple[int, int]]:
  """Returns the (identifier, value) pairs of a SETTINGS payload."""
  if len(payload) % _SETTING.size:
    raise ProtocolError(f'settings of {len(payload)} bytes')
  return _SETTING.iter_unpack(payload)


def parse_number(payload: bytes) -> int:
  """Returns a payload's first 31-bit number, without its reserved bit."""
  if len(payload) < _NUMBER.size:
    raise ProtocolError(f'a number of {len(payload)} bytes')
  return _NUMBER.unpack_from(payload)[0] & LARGEST_WINDOW


class SocketReader:
  """Reads exact numbers of bytes from a socket; for one thread at a time."""

  def __init__(self, source: socket.socket):
    self._socket = source
    self._ahead = memoryview(bytearray(_READ_AHEAD))
    self._start = self._end = 0

  def read(self, size: int) -> bytes:
    """Returns the next `size` bytes; raises as `read_into`."""
    if self._end - self._start >= size:
      start, self._start = self._start, self._start + size
      return bytes(self._ahead[start : self._start])
    memory = bytearray(size)
    self.read_into(memoryview(memory))
    return bytes(memory)

  def read_into(self, out: memoryview) -> None:
    """Fills `out`, a view of bytes.

    Raises:
      ConnectionError: if the peer closed the connection.
      OSError: if the socket fails otherwise.
    """
    taken = min(len(out), self._end - self._start)
    if taken:
      out[:taken] = self._ahead[self._start : self._start + taken]
      self._start += taken
    while taken < len(out):
      rest = out[taken:]
      size = self._socket.recvmsg_into([rest, self._ahead])[0]
      if not size:
        raise ConnectionResetError('the connection was closed')
      taken += size
      if size >= len(rest):
        self._start, self._end = 0, size - len(rest)


def uninitialized(size: int) -> memoryview:
  """Returns uninitialised memory of `size` bytes."""
  return np.empty(size, np.uint8).data


class Pieces:
  """A sequence of buffers that is consumed in slices."""

  def __init__(self, buffers: Sequence[stream_lib.Buffer]):
    self._buffers = collections.deque(buffers)
    self._offset = 0

  def take(self, size: int, out: list[stream_lib.Buffer]) -> None:
    """Moves the next `size` bytes to `out` without copying them."""
    while size:
      buffer, start = self._buffers[0], self._offset
      length = min(size, len(buffer) - start)
      out.append(memoryview(buffer)[start : start + length])
      size -= length
      self._offset += length
      if self._offset == len(buffer):
        self._buffers.popleft()
        self._offset = 0

  def frames(self, size: int, largest: int) -> list[stream_lib.Buffer]:
    """Returns DATA frames of the next `size` bytes, without copying them."""
    out: list[stream_lib.Buffer] = []
    while size:
      length = min(size, largest)
      out.append(header(Kind.DATA, 0, STREAM, length))
      self.take(length, out)
      size -= length
    return out


def send_all(target: socket.socket, buffers: list[stream_lib.Buffer]) -> None:
  """Sends buffers with as few system calls as possible."""
  first = 0
  while first < len(buffers):
    sent = target.sendmsg(buffers[first : first + _MOST_BUFFERS])
    while first < len(buffers) and sent >= len(buffers[first]):
      sent -= len(buffers[first])
      first += 1
    if sent:
      buffers[first] = memoryview(buffers[first])[sent:]
