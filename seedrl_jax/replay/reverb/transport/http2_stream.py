"""A gRPC stream over its own HTTP/2 connection.

Sends a message from the memory that it is in and receives one into the memory
where it stays. gRPC for Python copies both two or three times under the
interpreter lock. Wire format: RFC 9113 and gRPC's PROTOCOL-HTTP2.
"""

import contextlib
import socket
import struct
from collections.abc import Sequence

import grpc
import hpack

from seedrl_jax.replay.reverb.transport import http2, http2_connection, stream
from seedrl_jax.replay.reverb.transport.stream import StreamError

# Before each message: whether it is compressed, and its length.
_PREFIX = struct.Struct('>BI')
# The largest frame that the server may send; fewer frames cost less.
_FRAME_BYTES = 4 << 20
# Seconds of silence, and then without an answer, after which the system takes
# the server's machine for lost.
_SILENCE, _ANSWER = 60, 20


class Http2Stream:
  """A `stream.Stream`; `cancel` does not end a `begin` that still connects."""

  def __init__(self, address: str, method: str):
    self._address = address
    self._method = method
    self._socket = socket.socket()
    self._sender = http2_connection.Sender(self._socket)
    self._cancelled = False

  def begin(self, timeout: float) -> None:
    try:
      self._connect(timeout)
      self._sender.target = self._socket
      self._receiver = http2_connection.Receiver(self._socket, self._sender)
      self._socket.sendall(self._beginning())
      self._receiver.begin()
      self._socket.settimeout(None)
    # UnicodeError: the address is no valid host name.
    except (OSError, UnicodeError, http2.ProtocolError) as e:
      self.close()
      if self._cancelled:
        raise self._failure(e) from e
      unavailable = grpc.StatusCode.UNAVAILABLE
      raise StreamError(unavailable, f'no server: {e}') from e

  def send(self, parts: Sequence[stream.Buffer]) -> None:
    prefix = _PREFIX.pack(0, sum(len(part) for part in parts))
    try:
      self._sender.send([prefix, *filter(len, parts)])
    except OSError as e:
      raise self._failure(e) from e

  def receive(self) -> memoryview | None:
    try:
      return self._next_message()
    except StreamError:
      self._receiver.end()
      raise
    except (OSError, http2.ProtocolError, hpack.HPACKError) as e:
      self._receiver.end()
      raise self._failure(e) from e

  def cancel(self) -> None:
    self._cancelled = True
    self._sender.end()
    with contextlib.suppress(OSError):
      self._socket.shutdown(socket.SHUT_RDWR)

  def close(self) -> None:
    self._socket.close()

  def _connect(self, timeout: float) -> None:
    host, _, port = self._address.rpartition(':')
    place = host.removeprefix('[').removesuffix(']'), port
    unconnected = self._socket
    self._socket = socket.create_connection(place, timeout)
    unconnected.close()
    if self._cancelled:
      # `cancel` may have missed the new socket.
      raise BrokenPipeError
    self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Not on every system.
    for name, value in (
      ('TCP_KEEPIDLE', _SILENCE),
      ('TCP_KEEPINTVL', _ANSWER // 4),
      ('TCP_USER_TIMEOUT', 1000 * _ANSWER),
    ):
      if option := getattr(socket, name, None):
        self._socket.setsockopt(socket.IPPROTO_TCP, option, value)

  def _next_message(self) -> memoryview | None:
    prefix = http2.uninitialized(_PREFIX.size)
    came = self._receiver.read(prefix)
    if came == _PREFIX.size:
      compressed, size = _PREFIX.unpack(prefix)
      if compressed:
        raise http2.ProtocolError('a message is compressed')
      message = http2.uninitialized(size)
      if self._receiver.read(message) == size:
        return message
    # A server that fails in the middle of a message sends a status.
    self._receiver.check_status()
    if came:
      raise http2.ProtocolError('the last message was cut off')
    return None

  def _beginning(self) -> bytes:
    """Returns the first bytes of a connection with one stream."""
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
      http2.frame(http2.Kind.HEADERS, request, flags, http2.STREAM),
    ]
    return b''.join(parts)

  def _failure(self, error: Exception) -> StreamError:
    if self._cancelled:
      return StreamError(grpc.StatusCode.CANCELLED, 'cancelled here')
    if isinstance(error, OSError):
      unavailable = grpc.StatusCode.UNAVAILABLE
      return StreamError(unavailable, f'the connection is lost: {error}')
    return StreamError(grpc.StatusCode.INTERNAL, f'not understood: {error}')
