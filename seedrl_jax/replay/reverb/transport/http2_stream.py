"""A gRPC stream over its own HTTP/2 connection.

Sends a message from the memory that it is in and receives one into the memory
where it stays. gRPC for Python copies both two or three times under the
interpreter lock. Wire format: RFC 9113 and gRPC's PROTOCOL-HTTP2.
"""

import concurrent.futures
import contextlib
import socket
import struct
import threading
from collections.abc import Sequence

import grpc
import hpack

from seedrl_jax.replay.reverb.transport import http2, receiver, sender, stream
from seedrl_jax.replay.reverb.transport.stream import StreamError

# Before each message: whether it is compressed, and its length.
_PREFIX = struct.Struct('>BI')
# The largest frame that the server may send; fewer frames cost less.
_FRAME_BYTES = 4 << 20


class Http2Stream:
  """A `stream.Stream`."""

  def __init__(self, address: str, method: str):
    self._address = address
    self._method = method
    self._dialled: concurrent.futures.Future[socket.socket] = (
      concurrent.futures.Future()
    )
    self._socket = socket.socket()
    self._sender = sender.Sender(self._socket)
    self._cancelled = False

  def begin(self, timeout: float) -> None:
    try:
      self._connect(timeout)
      self._sender.target = self._socket
      self._receiver = receiver.Receiver(self._socket, self._sender)
      self._socket.sendall(self._beginning())
      self._receiver.begin()
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
    except (OSError, http2.ProtocolError, hpack.HPACKError) as e:
      self._receiver.end()
      raise self._failure(e) from e
    except StreamError:
      self._receiver.end()
      raise

  def cancel(self) -> None:
    self._cancelled = True
    self._dialled.cancel()
    self._sender.window.end()
    with contextlib.suppress(OSError):
      self._socket.shutdown(socket.SHUT_RDWR)

  def close(self) -> None:
    self._socket.close()

  def _connect(self, timeout: float) -> None:
    dialling = threading.Thread(
      target=_dial,
      args=(self._address, timeout, self._dialled),
      name='reverb-dial',
      daemon=True,
    )
    dialling.start()
    try:
      unconnected, self._socket = self._socket, self._dialled.result()
    except concurrent.futures.CancelledError:
      raise ConnectionAbortedError('cancelled here') from None
    unconnected.close()
    if self._cancelled:
      # `cancel` may have missed the new socket.
      raise BrokenPipeError
    self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, 'TCP_USER_TIMEOUT'):
      # Detects a machine that vanished while we send.
      milliseconds = int(1000 * receiver.ANSWER)
      self._socket.setsockopt(
        socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds
      )

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


def _dial(
  address: str,
  timeout: float,
  dialled: 'concurrent.futures.Future[socket.socket]',
) -> None:
  """Connects, in a thread, as a DNS look-up cannot be interrupted."""
  host, _, port = address.rpartition(':')
  place = host.removeprefix('[').removesuffix(']'), port
  try:
    connected = socket.create_connection(place, timeout)
  except BaseException as e:
    # InvalidStateError: `cancel` was first.
    with contextlib.suppress(concurrent.futures.InvalidStateError):
      dialled.set_exception(e)
    return
  try:
    dialled.set_result(connected)
  except concurrent.futures.InvalidStateError:
    connected.close()
