"""Both directions of an HTTP/2 connection with one gRPC stream.

Flow control is that of RFC 9113, 5.2; gRPC's PROTOCOL-HTTP2 defines the status
of a call. Padding and headers in several frames, which gRPC servers do not
send, are refused.
"""

import contextlib
import socket
import threading
import urllib.parse
from collections.abc import Sequence

import grpc
import hpack

from seedrl_jax.replay.reverb.transport import http2
from seedrl_jax.replay.reverb.transport.stream import Buffer, StreamError

# Sent under one hold of the lock.
_SEND_BYTES = 1 << 20
# Largest payload of a frame other than DATA, in bytes.
_MAX_CONTROL_BYTES = 1 << 16
_CODES: dict[bytes, grpc.StatusCode] = {
  b'%d' % code.value[0]: code for code in grpc.StatusCode
}


class Sender:
  """Sends messages from one thread and control frames from another.

  Attributes:
    target: the connected socket.
    frame_bytes: the largest payload that the server accepts.
  """

  def __init__(self, target: socket.socket):
    self.target = target
    self.frame_bytes = http2.FIRST_FRAME_BYTES
    # Held while writing, so that frames stay whole.
    self._writing = threading.Lock()
    # Notified if more may be sent, and at the end.
    self._changed = threading.Condition()
    self._initial = http2.FIRST_WINDOW
    self._stream = self._connection = http2.FIRST_WINDOW
    self._ended = False

  def send(self, buffers: Sequence[Buffer]) -> None:
    """Sends bytes as DATA frames; waits while the window is empty.

    Raises:
      OSError: if the stream has ended or the connection is lost.
    """
    pieces = http2.Pieces(buffers)
    size = sum(len(buffer) for buffer in buffers)
    while size:
      self._wait()
      with self._writing:
        # Under the lock: settings that shrink the window are acknowledged
        # before or after this, and then these bytes still fit.
        allowed = self._take(min(size, _SEND_BYTES))
        http2.send_all(self.target, pieces.frames(allowed, self.frame_bytes))
      size -= allowed

  def post(self, frame: bytes) -> None:
    """Sends a control frame; does nothing if the connection is lost."""
    # What arrived before the connection was lost can still be read.
    with self._writing, contextlib.suppress(ConnectionError):
      self.target.sendall(frame)

  def allow(self, size: int, to_stream: bool) -> None:
    """Adds `size` bytes to the stream's or the connection's window."""
    with self._changed:
      if to_stream:
        self._stream += size
      else:
        self._connection += size
      self._changed.notify_all()

  def set_initial_window(self, size: int) -> None:
    """Changes the stream's initial window, also afterwards."""
    if size > http2.LARGEST_WINDOW:
      raise http2.ProtocolError(f'a window of {size} bytes')
    # May make the window negative.
    self.allow(size - self._initial, to_stream=True)
    self._initial = size

  def end(self) -> None:
    """Ends current and later waits."""
    with self._changed:
      self._ended = True
      self._changed.notify_all()

  def _room(self) -> int:
    return min(self._stream, self._connection)

  def _wait(self) -> None:
    with self._changed:
      self._changed.wait_for(lambda: self._ended or self._room() > 0)
      if self._ended:
        raise BrokenPipeError('the stream has ended')

  def _take(self, wanted: int) -> int:
    """Takes at most `wanted` bytes, perhaps 0, and returns how many."""
    with self._changed:
      size = max(min(wanted, self._room()), 0)
      self._stream -= size
      self._connection -= size
    return size


class Receiver:
  """Reads the stream's frames and answers pings and settings."""

  def __init__(self, source: socket.socket, sender: Sender):
    self._reader = http2.SocketReader(source)
    self._sender = sender
    self._ended = False
    # Bytes left of the current DATA frame; received since the last update of
    # the server's window.
    self._left = self._used = 0
    self._decoder = hpack.Decoder()
    self._fields: dict[bytes, bytes] = {}

  def begin(self) -> None:
    """Reads the server's first frame, which must be SETTINGS."""
    first = self._next_header()
    if first.kind != http2.Kind.SETTINGS:
      raise http2.ProtocolError('it is no gRPC server')
    self._on_settings(first)

  def read(self, out: memoryview) -> int:
    """Fills `out`; returns the number of bytes, fewer at the stream's end."""
    taken = 0
    while taken < len(out):
      if self._left:
        length = min(self._left, len(out) - taken)
        self._reader.read_into(out[taken : taken + length])
        self._left -= length
        taken += length
      elif not self._ended:
        self._next_frame()
      else:
        break
    return taken

  def end(self) -> None:
    """Stops reading and sending."""
    self._ended = True
    self._sender.end()

  def check_status(self) -> None:
    """Raises StreamError if the trailers hold an error or no status."""
    fields = self._fields
    if b'grpc-status' not in fields:
      status = fields.get(b':status', b'none')
      raise StreamError(
        grpc.StatusCode.UNKNOWN, f'no answer of gRPC, HTTP status {status!r}'
      )
    code = _CODES.get(fields[b'grpc-status'], grpc.StatusCode.UNKNOWN)
    if code != grpc.StatusCode.OK:
      message = fields.get(b'grpc-message', b'').decode('ascii', 'replace')
      raise StreamError(code, urllib.parse.unquote(message, errors='replace'))

  def _next_frame(self) -> None:
    """Reads a frame; of DATA only the header."""
    header = self._next_header()
    match header.kind:
      case http2.Kind.DATA:
        self._on_data(header)
      case http2.Kind.HEADERS:
        self._on_headers(header)
      case http2.Kind.SETTINGS:
        self._on_settings(header)
      case http2.Kind.PING:
        payload = self._payload(header)
        if not header.flags & http2.Flag.ACK:
          self._post(http2.Kind.PING, payload)
      case http2.Kind.WINDOW_UPDATE:
        size = http2.parse_number(self._payload(header))
        self._sender.allow(size, to_stream=header.stream == http2.STREAM)
      case http2.Kind.RST_STREAM:
        number = http2.parse_number(self._payload(header))
        raise _unavailable(f'the server ended the call, error {number}')
      case http2.Kind.GOAWAY:
        # The payload starts with the last stream that is still served.
        if http2.parse_number(self._payload(header)) < http2.STREAM:
          raise _unavailable('the server is shutting down')
      case _:
        self._payload(header)

  def _next_header(self) -> http2.FrameHeader:
    return http2.parse_header(self._reader.read(http2.HEADER_BYTES))

  def _payload(self, header: http2.FrameHeader) -> bytes:
    """Reads the payload of a frame other than DATA."""
    if header.size > _MAX_CONTROL_BYTES:
      raise http2.ProtocolError(f'a control frame has {header.size} bytes')
    return self._reader.read(header.size)

  def _on_data(self, header: http2.FrameHeader) -> None:
    if header.flags & http2.Flag.PADDED:
      raise http2.ProtocolError('a frame is padded')
    self._left = header.size
    if header.flags & http2.Flag.END_STREAM:
      self.end()
    self._used += header.size
    if self._used > http2.LARGEST_WINDOW // 2:
      self._sender.post(http2.window_update(0, self._used))
      self._sender.post(http2.window_update(http2.STREAM, self._used))
      self._used = 0

  def _on_headers(self, header: http2.FrameHeader) -> None:
    others = http2.Flag.PADDED | http2.Flag.PRIORITY
    if header.flags & others or not header.flags & http2.Flag.END_HEADERS:
      raise http2.ProtocolError(f'headers with flags {header.flags:#x}')
    block = self._payload(header)
    self._fields |= dict(self._decoder.decode(block, raw=True))
    went_well = self._fields.get(b':status') == b'200'
    if header.flags & http2.Flag.END_STREAM or not went_well:
      self.end()

  def _on_settings(self, header: http2.FrameHeader) -> None:
    values = http2.parse_settings(self._payload(header))
    if header.flags & http2.Flag.ACK:
      return
    for key, value in values:
      if key == http2.Setting.INITIAL_WINDOW_SIZE:
        self._sender.set_initial_window(value)
      elif key == http2.Setting.MAX_FRAME_SIZE:
        if not http2.FIRST_FRAME_BYTES <= value <= http2.LARGEST_FRAME_BYTES:
          raise http2.ProtocolError(f'frames of at most {value} bytes')
        self._sender.frame_bytes = value
    self._post(http2.Kind.SETTINGS, b'')

  def _post(self, kind: http2.Kind, payload: bytes) -> None:
    """Acknowledges a frame of this kind."""
    self._sender.post(http2.frame(kind, payload, http2.Flag.ACK))


def _unavailable(details: str) -> StreamError:
  return StreamError(grpc.StatusCode.UNAVAILABLE, details)
