"""One streaming call to a gRPC server, over a connection of its own.

Opened by `connection.py` for the streams that carry unrolls; all other calls
are gRPC's. gRPC for Python copies each message that it receives three times
and each that it sends twice, and holds the interpreter lock meanwhile; at a
gigabyte a second that is most of the work. Here a message is sent from where
it lies and received where it stays.

HTTP/2: RFC 9113. gRPC on it: its document PROTOCOL-HTTP2.
"""

import collections
import contextlib
import socket
import struct
import threading
from collections.abc import Sequence

import grpc
import hpack

from seedrl_jax.replay.reverb.transport import (
  call_status,
  dial,
  http2,
  send_window,
  wire,
)
from seedrl_jax.replay.reverb.transport.call_status import CallError

_STREAM = 1
# Of a message: whether it is compressed, and its length.
_PREFIX = struct.Struct('>BI')
# Frames that the server may send: the larger, the fewer there are to look at.
_FRAME_BYTES = 4 << 20
# Sent with one system call.
_SEND_BYTES = 1 << 20
# Frames of control that may wait to be sent, and bytes of those received.
_MOST_CONTROL, _MOST_CONTROL_BYTES = 1000, 1 << 16
# Seconds without a word until the server is asked for one, and for its answer.
# It takes it for an attack where asked again within five minutes.
_SILENCE, _ANSWER = 310.0, 20.0
_PING = b'seedrl!?'


class Call:
  """A bidirectional stream of messages.

  One thread may send while another receives; any may cancel.
  """

  def __init__(self, address: str, method: str):
    """Connects to nothing yet.

    Args:
      address: 'host:port'.
      method: path of the gRPC method, as '/package.Service/Method'.
    """
    self._address = address
    self._method = method
    host, _, port = address.rpartition(':')
    self._dial = dial.Dial(host.removeprefix('[').removesuffix(']'), port)
    # Not connected yet.
    self._socket = socket.socket()
    # Held by whoever writes to the socket, so that frames stay whole.
    self._sending = threading.Lock()
    self._control: collections.deque[bytes] = collections.deque()
    self._window = send_window.SendWindow()
    self._frame_bytes = http2.FIRST_FRAME_BYTES
    self._cancelled = self._ended = False
    # The rest is the receiving thread's. Bytes of the frame of data that it is
    # in, of the padding behind them, and of all that the server has yet to be
    # allowed anew.
    self._left = self._padding = self._used = 0
    self._decoder = hpack.Decoder()
    self._fields: dict[bytes, bytes] = {}
    # Whether the server is to give a sign of life.
    self._asked = True

  def begin(self, timeout: float) -> None:
    """Connects and begins the call; to be called once, before all else.

    Args:
      timeout: seconds that each step may take until the server has answered.

    Raises:
      CallError: UNAVAILABLE where no gRPC server answers there.
    """
    try:
      self._connect(timeout)
      self._reader = http2.SocketReader(self._socket, self._on_silence)
      self._socket.sendall(self._beginning())
      first = self._next_header()
      if first.kind != http2.Kind.SETTINGS:
        raise http2.ProtocolError('it is no gRPC server')
      self._on_settings(first)
      self._set_asked(False)
    # UnicodeError: of a host that is no name.
    except (OSError, UnicodeError, http2.ProtocolError) as e:
      self.close()
      if self._cancelled:
        raise self._failure(e) from e
      raise CallError(call_status.UNAVAILABLE, f'no server: {e}') from e

  def _connect(self, timeout: float) -> None:
    unconnected, self._socket = self._socket, self._dial.connect(timeout)
    unconnected.close()
    if self._cancelled:
      # `cancel` may not have found this one.
      raise BrokenPipeError
    self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, 'TCP_USER_TIMEOUT'):
      # A host that went away silently is noticed where something is sent.
      self._socket.setsockopt(
        socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * _ANSWER)
      )

  def _beginning(self) -> bytes:
    """Returns what a connection and its only call begin with."""
    fields = [
      (':method', 'POST'),
      (':scheme', 'http'),
      (':path', self._method),
      (':authority', self._address),
      ('te', 'trailers'),
      ('content-type', 'application/grpc'),
    ]
    ours = {
      http2.Setting.ENABLE_PUSH: 0,
      http2.Setting.INITIAL_WINDOW_SIZE: http2.LARGEST_WINDOW,
      http2.Setting.MAX_FRAME_SIZE: _FRAME_BYTES,
    }
    flags = http2.Flag.END_HEADERS
    request = hpack.Encoder().encode(fields)
    parts = [
      http2.PREFACE,
      http2.settings(ours),
      http2.window_update(0, http2.LARGEST_WINDOW - http2.FIRST_WINDOW),
      http2.frame(http2.Kind.HEADERS, request, flags, _STREAM),
    ]
    return b''.join(parts)

  def send(self, parts: Sequence[wire.Buffer]) -> None:
    """Sends a message made of `parts`; waits while the server takes no more.

    Raises:
      CallError: where the call has ended. Why, `receive` says.
    """
    size = sum(len(part) for part in parts)
    pieces = http2.Pieces([_PREFIX.pack(0, size), *filter(len, parts)])
    size += _PREFIX.size
    while size:
      if not self._window.wait():
        raise self._failure(BrokenPipeError('the call has ended'))
      try:
        with self._sending:
          # Settings that take room back are acknowledged before this or after
          # it; what was taken earlier would come after, and be too much.
          allowed = self._window.take(min(size, _SEND_BYTES))
          frames = pieces.frames(allowed, self._frame_bytes, _STREAM)
          http2.send_all(self._socket, frames)
        self._send_control()
      except OSError as e:
        # What is sent after half a frame would be taken for its rest.
        with contextlib.suppress(OSError):
          self._socket.shutdown(socket.SHUT_WR)
        raise self._failure(e) from e
      size -= allowed

  def receive(self) -> memoryview | None:
    """Returns the next message, or None after the last.

    Raises:
      CallError: with which the call ended.
    """
    try:
      prefix = http2.uninitialized(_PREFIX.size)
      came = self._read(prefix)
      if came == _PREFIX.size:
        compressed, size = _PREFIX.unpack(prefix)
        if compressed:
          raise http2.ProtocolError('a message is compressed')
        message = http2.uninitialized(size)
        if self._read(message) == size:
          return message
      # A server that gives up in the middle of a message says why.
      call_status.check_fields(self._fields)
      if came:
        raise http2.ProtocolError('the last message was cut off')
      return None
    except (OSError, http2.ProtocolError, hpack.HPACKError) as e:
      self._end()
      raise self._failure(e) from e
    except CallError:
      self._end()
      raise

  def cancel(self) -> None:
    """Ends the call; what waits in it ends with CANCELLED."""
    self._cancelled = True
    self._dial.cancel()
    self._window.end()
    with contextlib.suppress(OSError):
      self._socket.shutdown(socket.SHUT_RDWR)

  def close(self) -> None:
    """Frees the connection, when nobody sends or receives any more."""
    self._socket.close()

  def _read(self, out: memoryview) -> int:
    """Fills `out` with data of the call; returns how much there was."""
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

  def _next_frame(self) -> None:
    """Reads a frame, of data only what stands before it."""
    if self._padding:
      self._reader.read(self._padding)
      self._padding = 0
    header = self._next_header()
    if self._asked:
      self._set_asked(False)
    match header.kind:
      case http2.Kind.DATA:
        self._on_data(header)
      case http2.Kind.HEADERS:
        self._on_headers(header)
      case http2.Kind.SETTINGS:
        self._on_settings(header)
      case http2.Kind.PING:
        self._on_ping(header)
      case http2.Kind.WINDOW_UPDATE:
        self._on_window_update(header)
      case http2.Kind.RST_STREAM:
        raise call_status.reset(http2.parse_number(self._payload(header)))
      case http2.Kind.GOAWAY:
        self._on_goaway(header)
      case _:
        self._payload(header)

  def _next_header(self) -> http2.Header:
    return http2.parse_header(self._reader.read(http2.HEADER_BYTES))

  def _payload(self, header: http2.Header) -> bytes:
    """Reads the payload of a frame that is not data."""
    if header.size > _MOST_CONTROL_BYTES:
      raise http2.ProtocolError(f'a frame of control has {header.size} bytes')
    return self._reader.read(header.size)

  def _on_data(self, header: http2.Header) -> None:
    self._left = header.size
    if header.flags & http2.Flag.PADDED:
      self._padding = self._reader.read(1)[0]
      self._left -= 1 + self._padding
      if self._left < 0:
        raise http2.ProtocolError('a frame is all padding')
    if header.flags & http2.Flag.END_STREAM:
      self._end()
    self._used += header.size
    if self._used > http2.LARGEST_WINDOW // 2:
      self._post(http2.window_update(0, self._used))
      self._post(http2.window_update(_STREAM, self._used))
      self._used = 0

  def _on_headers(self, header: http2.Header) -> None:
    """Takes the response's headers or, at its end, trailers."""
    block = http2.without_padding(self._payload(header), header.flags)
    flags = header.flags
    while not flags & http2.Flag.END_HEADERS:
      header = self._next_header()
      if header.kind != http2.Kind.CONTINUATION:
        raise http2.ProtocolError('headers were cut off')
      flags |= header.flags & http2.Flag.END_HEADERS
      block += self._payload(header)
      if len(block) > _MOST_CONTROL_BYTES:
        raise http2.ProtocolError(f'headers have over {len(block)} bytes')
    self._fields |= dict(self._decoder.decode(block, raw=True))
    went_well = self._fields.get(b':status') == b'200'
    if flags & http2.Flag.END_STREAM or not went_well:
      self._end()

  def _on_settings(self, header: http2.Header) -> None:
    values = http2.parse_settings(self._payload(header))
    if header.flags & http2.Flag.ACK:
      return
    for key, value in values:
      if key == http2.Setting.INITIAL_WINDOW_SIZE:
        self._window.set_initial(value)
      elif key == http2.Setting.MAX_FRAME_SIZE:
        if not http2.FIRST_FRAME_BYTES <= value <= http2.LARGEST_FRAME_BYTES:
          raise http2.ProtocolError(f'frames of at most {value} bytes')
        self._frame_bytes = value
    self._post(http2.frame(http2.Kind.SETTINGS, b'', http2.Flag.ACK))

  def _on_ping(self, header: http2.Header) -> None:
    payload = self._payload(header)
    if not header.flags & http2.Flag.ACK:
      self._post(http2.frame(http2.Kind.PING, payload, http2.Flag.ACK))

  def _on_window_update(self, header: http2.Header) -> None:
    size = http2.parse_number(self._payload(header))
    self._window.add(size, to_call=header.stream == _STREAM)

  def _on_goaway(self, header: http2.Header) -> None:
    """A server that shuts down says which calls it still answers."""
    if http2.parse_number(self._payload(header)) < _STREAM:
      raise CallError(call_status.UNAVAILABLE, 'the server is shutting down')

  def _on_silence(self) -> None:
    if self._asked:
      raise TimeoutError('the server does not answer')
    self._set_asked(True)
    self._post(http2.frame(http2.Kind.PING, _PING))

  def _set_asked(self, asked: bool) -> None:
    self._asked = asked
    self._socket.settimeout(_ANSWER if asked else _SILENCE)

  def _post(self, frame: bytes) -> None:
    """Sends a frame of control, after what is being sent at the moment."""
    if len(self._control) >= _MOST_CONTROL:
      raise http2.ProtocolError('frames of control came without end')
    self._control.append(frame)
    # What came before the connection was lost can still be read.
    with contextlib.suppress(ConnectionError):
      self._send_control()

  def _send_control(self) -> None:
    # Whoever holds the lock does this too once it is free.
    while self._control and self._sending.acquire(blocking=False):
      try:
        with contextlib.suppress(IndexError):
          self._socket.sendall(self._control.popleft())
      finally:
        self._sending.release()

  def _end(self) -> None:
    self._ended = True
    self._window.end()

  def _failure(self, error: Exception) -> CallError:
    if self._cancelled:
      return CallError(grpc.StatusCode.CANCELLED, 'cancelled here')
    if isinstance(error, OSError):
      return CallError(
        call_status.UNAVAILABLE, f'the connection is lost: {error}'
      )
    return CallError(grpc.StatusCode.INTERNAL, f'not understood: {error}')
