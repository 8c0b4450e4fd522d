"""An HTTP/2 peer on loopback that a test scripts frame by frame.

Does what real servers do not do on request. Shares no code with the client.
"""

import contextlib
import socket
import struct
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import NamedTuple

import hpack

from seedrl_jax.replay.reverb.transport import http2_stream

# Seconds until a hanging test fails.
PATIENCE = 300.0

PREFACE = b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'
DATA, HEADERS, RST_STREAM, SETTINGS = 0, 1, 3, 4
PING, GOAWAY, WINDOW_UPDATE = 6, 7, 8
ACK = END_STREAM = 0x1
END_HEADERS, PADDED = 0x4, 0x8
WINDOW_SIZE, FRAME_SIZE = 4, 5


class Frame(NamedTuple):
  """A frame from the client."""

  kind: int
  flags: int
  stream: int
  payload: bytes


def frame(
  kind: int, payload: bytes = b'', flags: int = 0, stream: int = 0
) -> bytes:
  return (
    len(payload).to_bytes(3, 'big')
    + bytes([kind, flags])
    + stream.to_bytes(4, 'big')
    + payload
  )


def settings(*pairs: tuple[int, int]) -> bytes:
  """Returns a SETTINGS frame of (identifier, value) pairs."""
  return frame(SETTINGS, b''.join(struct.pack('>HI', *pair) for pair in pairs))


def window_update(size: int, stream: int) -> bytes:
  """Returns a frame that allows `size` more bytes."""
  return frame(WINDOW_UPDATE, size.to_bytes(4, 'big'), stream=stream)


def ping(payload: bytes) -> bytes:
  return frame(PING, payload)


def headers(flags: int = END_HEADERS, **values: str) -> bytes:
  """Returns HEADERS; `_` means `-`, and `status` means `:status`."""
  names = {'status': ':status'}
  fields = [
    (names.get(name, name.replace('_', '-')), value)
    for name, value in values.items()
  ]
  return frame(HEADERS, hpack.Encoder().encode(fields), flags, 1)


def trailers(**values: str) -> bytes:
  return headers(END_HEADERS | END_STREAM, **values)


def message(content: bytes) -> bytes:
  return b'\0' + len(content).to_bytes(4, 'big') + content


def data(content: bytes, flags: int = 0) -> bytes:
  return frame(DATA, content, flags, 1)


RESPONSE = headers(status='200', content_type='application/grpc')
OK = trailers(grpc_status='0')


class Peer:
  """The server's side of a connection."""

  def __init__(self, connection: socket.socket):
    self.socket = connection

  def send(self, *parts: bytes) -> None:
    self.socket.sendall(b''.join(parts))

  def read(self, size: int) -> bytes:
    content = bytearray()
    while len(content) < size:
      piece = self.socket.recv(size - len(content))
      assert piece, 'the client ended the connection'
      content += piece
    return bytes(content)

  def frame(self) -> Frame:
    head = self.read(9)
    size = int.from_bytes(head[:3], 'big')
    stream = int.from_bytes(head[5:], 'big')
    payload = self.read(size)
    return Frame(head[3], head[4], stream, payload)

  def next(self, kind: int) -> Frame:
    got = self.frame()
    assert got.kind == kind, got
    return got

  def hello(self) -> None:
    """Reads the client's first frames."""
    assert self.read(len(PREFACE)) == PREFACE
    for kind in (SETTINGS, WINDOW_UPDATE, HEADERS):
      self.next(kind)

  def begin(self, *pairs: tuple[int, int]) -> None:
    """Reads a client's first frames and answers with settings."""
    self.hello()
    self.send(settings(*pairs))
    self.acknowledged()

  def acknowledged(self) -> None:
    """Reads the acknowledgement of our settings."""
    assert self.next(SETTINGS).flags == ACK

  def data(self, size: int) -> list[bytes]:
    """Returns DATA frames of `size` bytes in all."""
    frames: list[bytes] = []
    while (left := size - sum(map(len, frames))) > 0:
      frames.append(self.next(DATA).payload)
      assert len(frames[-1]) <= left, 'more than was allowed'
    return frames

  def drain(self) -> None:
    with contextlib.suppress(OSError):
      while self.socket.recv(1 << 20):
        pass

  def end(self) -> None:
    """Closes our side and reads until the client closes its own."""
    with contextlib.suppress(OSError):
      self.socket.shutdown(socket.SHUT_WR)
    self.drain()


Script = Callable[[Peer], object]


@contextlib.contextmanager
def serve(script: Script) -> Iterator[str]:
  """Runs a script on the first connection; yields the address.

  Closes our side after the script and reads until the client closes its own.
  Raises what the script raised.
  """
  listener = socket.create_server(('127.0.0.1', 0))
  listener.settimeout(PATIENCE)

  def run() -> None:
    connection, _ = listener.accept()
    with connection:
      connection.settimeout(PATIENCE)
      connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
      peer = Peer(connection)
      script(peer)
      peer.end()

  with listener, futures.ThreadPoolExecutor(1) as pool:
    done = pool.submit(run)
    yield f'127.0.0.1:{listener.getsockname()[1]}'
    done.result(PATIENCE)


@contextlib.contextmanager
def calling(script: Script) -> Iterator[http2_stream.Http2Stream]:
  """Yields a stream that has begun with a scripted peer."""
  with serve(script) as address:
    call = http2_stream.Http2Stream(address, '/package.Service/Method')
    try:
      call.begin(PATIENCE)
      yield call
    finally:
      call.cancel()
      call.close()
