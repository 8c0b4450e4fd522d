"""The receiving side of an HTTP/2 stream: message bytes and the call's status.

gRPC's PROTOCOL-HTTP2 defines the status and what replaces a missing one.
"""

import socket
import urllib.parse

import grpc
import hpack

from seedrl_jax.replay.reverb.transport import http2, sender
from seedrl_jax.replay.reverb.transport.stream import StreamError

# Largest payload of a frame other than DATA, in bytes.
_MAX_CONTROL_BYTES = 1 << 16
# Seconds without a frame before a ping, and for its answer. Servers close the
# connection if pings come less than five minutes apart.
SILENCE, ANSWER = 310.0, 20.0
_PING = b'seedrl!?'

_UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
_CODES: dict[bytes, grpc.StatusCode] = {
  b'%d' % code.value[0]: code for code in grpc.StatusCode
}
_RETRY_STATUS = (b'429', b'502', b'503', b'504')
# By HTTP/2 error code; others map to INTERNAL.
_RESET_CODES = {
  7: _UNAVAILABLE,
  8: grpc.StatusCode.CANCELLED,
  11: grpc.StatusCode.RESOURCE_EXHAUSTED,
  12: grpc.StatusCode.PERMISSION_DENIED,
}


class Receiver:
  """Reads one stream's frames and answers pings and settings."""

  def __init__(self, source: socket.socket, output: sender.Sender):
    self._socket = source
    self._reader = http2.SocketReader(source, self._on_silence)
    self._sender = output
    self._ended = False
    # Bytes left of the current DATA frame and of its padding; bytes received
    # since the last window update.
    self._left = self._padding = self._used = 0
    self._decoder = hpack.Decoder()
    self._fields: dict[bytes, bytes] = {}
    # Whether a frame from the server is due within ANSWER seconds.
    self._asked = True

  def begin(self) -> None:
    """Reads the server's first frame, which must be SETTINGS."""
    first = self._next_header()
    if first.kind != http2.Kind.SETTINGS:
      raise http2.ProtocolError('it is no gRPC server')
    self._on_settings(first)
    self._set_asked(False)

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
    self._sender.window.end()

  def check_status(self) -> None:
    """Raises StreamError if the trailers hold an error or no status."""
    fields = self._fields
    if b'grpc-status' not in fields:
      status = fields.get(b':status', b'none')
      code = _UNAVAILABLE
      if status not in _RETRY_STATUS:
        code = grpc.StatusCode.UNKNOWN
      raise StreamError(code, f'no answer of gRPC, HTTP status {status!r}')
    code = _CODES.get(fields[b'grpc-status'], grpc.StatusCode.UNKNOWN)
    if code != grpc.StatusCode.OK:
      message = fields.get(b'grpc-message', b'').decode('ascii', 'replace')
      raise StreamError(code, urllib.parse.unquote(message, errors='replace'))

  def _next_frame(self) -> None:
    """Reads a frame; of DATA only the header."""
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
        size = http2.parse_number(self._payload(header))
        self._sender.window.add(size, to_stream=header.stream == http2.STREAM)
      case http2.Kind.RST_STREAM:
        number = http2.parse_number(self._payload(header))
        code = _RESET_CODES.get(number, grpc.StatusCode.INTERNAL)
        raise StreamError(code, f'the server ended the call, error {number}')
      case http2.Kind.GOAWAY:
        # The payload starts with the last stream that is still served.
        if http2.parse_number(self._payload(header)) < http2.STREAM:
          raise StreamError(_UNAVAILABLE, 'the server is shutting down')
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
    self._left = header.size
    if header.flags & http2.Flag.PADDED:
      self._padding = self._reader.read(1)[0]
      self._left -= 1 + self._padding
      if self._left < 0:
        raise http2.ProtocolError('a frame is all padding')
    if header.flags & http2.Flag.END_STREAM:
      self.end()
    self._used += header.size
    if self._used > http2.LARGEST_WINDOW // 2:
      self._sender.post(http2.window_update(0, self._used))
      self._sender.post(http2.window_update(http2.STREAM, self._used))
      self._used = 0

  def _on_headers(self, header: http2.FrameHeader) -> None:
    block = http2.without_padding(self._payload(header), header.flags)
    flags = header.flags
    while not flags & http2.Flag.END_HEADERS:
      header = self._next_header()
      if header.kind != http2.Kind.CONTINUATION:
        raise http2.ProtocolError('headers were cut off')
      flags |= header.flags & http2.Flag.END_HEADERS
      block += self._payload(header)
      if len(block) > _MAX_CONTROL_BYTES:
        raise http2.ProtocolError(f'headers have over {len(block)} bytes')
    self._fields |= dict(self._decoder.decode(block, raw=True))
    went_well = self._fields.get(b':status') == b'200'
    if flags & http2.Flag.END_STREAM or not went_well:
      self.end()

  def _on_settings(self, header: http2.FrameHeader) -> None:
    values = http2.parse_settings(self._payload(header))
    if header.flags & http2.Flag.ACK:
      return
    for key, value in values:
      if key == http2.Setting.INITIAL_WINDOW_SIZE:
        self._sender.window.set_initial(value)
      elif key == http2.Setting.MAX_FRAME_SIZE:
        if not http2.FIRST_FRAME_BYTES <= value <= http2.LARGEST_FRAME_BYTES:
          raise http2.ProtocolError(f'frames of at most {value} bytes')
        self._sender.frame_bytes = value
    self._sender.post(http2.frame(http2.Kind.SETTINGS, b'', http2.Flag.ACK))

  def _on_ping(self, header: http2.FrameHeader) -> None:
    payload = self._payload(header)
    if not header.flags & http2.Flag.ACK:
      ack = http2.frame(http2.Kind.PING, payload, http2.Flag.ACK)
      self._sender.post(ack)

  def _on_silence(self) -> None:
    if self._asked:
      raise TimeoutError('the server does not answer')
    self._set_asked(True)
    self._sender.post(http2.frame(http2.Kind.PING, _PING))

  def _set_asked(self, asked: bool) -> None:
    self._asked = asked
    self._socket.settimeout(ANSWER if asked else SILENCE)
