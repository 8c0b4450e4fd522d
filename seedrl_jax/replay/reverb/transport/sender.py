"""The sending side of an HTTP/2 stream, with flow control (RFC 9113, 5.2)."""

import collections
import contextlib
import socket
import threading
from collections.abc import Sequence

from seedrl_jax.replay.reverb.transport import http2, stream

# Sent under one hold of the lock.
_SEND_BYTES = 1 << 20
# Limit of queued control frames.
_MAX_CONTROL = 1000


class SendWindow:
  """The bytes that may be sent; one thread takes, another adds."""

  def __init__(self) -> None:
    self._changed = threading.Condition()
    self._initial = http2.FIRST_WINDOW
    self._stream = self._connection = http2.FIRST_WINDOW
    self._ended = False

  def wait(self) -> bool:
    """Waits until bytes may be sent; returns False after `end`."""
    with self._changed:
      self._changed.wait_for(lambda: self._ended or self._room() > 0)
      return not self._ended

  def take(self, wanted: int) -> int:
    """Takes at most `wanted` bytes, perhaps 0, and returns how many."""
    with self._changed:
      size = max(min(wanted, self._room()), 0)
      self._stream -= size
      self._connection -= size
    return size

  def add(self, size: int, to_stream: bool) -> None:
    """Adds `size` bytes to the stream's or the connection's window."""
    with self._changed:
      if to_stream:
        self._stream += size
      else:
        self._connection += size
      self._changed.notify_all()

  def set_initial(self, size: int) -> None:
    """Changes the stream's initial window, also afterwards."""
    if size > http2.LARGEST_WINDOW:
      raise http2.ProtocolError(f'a window of {size} bytes')
    with self._changed:
      # May make the window negative.
      self._stream += size - self._initial
      self._initial = size
      self._changed.notify_all()

  def end(self) -> None:
    """Ends current and later waits."""
    with self._changed:
      self._ended = True
      self._changed.notify_all()

  def _room(self) -> int:
    return min(self._stream, self._connection)


class Sender:
  """Sends messages, from one thread, and control frames, from any.

  Attributes:
    frame_bytes: the largest payload that the server accepts.
  """

  def __init__(self, target: socket.socket):
    self.target = target
    self.window = SendWindow()
    self.frame_bytes = http2.FIRST_FRAME_BYTES
    # Held while writing, so that frames stay whole.
    self._writing = threading.Lock()
    self._control: collections.deque[bytes] = collections.deque()

  def send(self, buffers: Sequence[stream.Buffer]) -> None:
    """Sends bytes as DATA frames; waits while the window is empty.

    Raises:
      OSError: if the stream has ended or the connection is lost.
    """
    pieces = http2.Pieces(buffers)
    size = sum(len(buffer) for buffer in buffers)
    while size:
      if not self.window.wait():
        raise BrokenPipeError('the stream has ended')
      try:
        with self._writing:
          # Under the lock: settings that shrink the window are acknowledged
          # before or after this, and then these bytes still fit.
          allowed = self.window.take(min(size, _SEND_BYTES))
          frames = pieces.frames(allowed, self.frame_bytes)
          http2.send_all(self.target, frames)
        self._send_control()
      except OSError:
        # The server would read later frames as the rest of this one.
        with contextlib.suppress(OSError):
          self.target.shutdown(socket.SHUT_WR)
        raise
      size -= allowed

  def post(self, frame: bytes) -> None:
    """Queues a control frame; sends it once the socket is free.

    Raises:
      ProtocolError: if too many are queued.
    """
    if len(self._control) >= _MAX_CONTROL:
      raise http2.ProtocolError('control frames came without end')
    self._control.append(frame)
    # What arrived before the connection was lost can still be read.
    with contextlib.suppress(ConnectionError):
      self._send_control()

  def _send_control(self) -> None:
    # If the lock is taken, its holder sends them when it is done.
    while self._control and self._writing.acquire(blocking=False):
      try:
        with contextlib.suppress(IndexError):
          self.target.sendall(self._control.popleft())
      finally:
        self._writing.release()
