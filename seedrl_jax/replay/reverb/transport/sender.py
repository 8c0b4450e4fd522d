"""What a stream sends over HTTP/2, and how much of it flow control allows.

RFC 9113, section 5.2: a sender may send as many bytes of data as the receiver
has allowed, for the stream and for its whole connection.
"""

import collections
import contextlib
import socket
import threading
from collections.abc import Sequence

from seedrl_jax.replay.reverb.transport import http2, stream

# Sent with one system call.
_SEND_BYTES = 1 << 20
# Control frames that may wait to be sent.
_MAX_CONTROL = 1000


class SendWindow:
  """Bytes that may be sent; one thread takes, another adds."""

  def __init__(self) -> None:
    """Allows what every receiver allows at first."""
    self._changed = threading.Condition()
    self._initial = http2.FIRST_WINDOW
    self._stream = self._connection = http2.FIRST_WINDOW
    self._ended = False

  def wait(self) -> bool:
    """Waits until something may be sent; returns False after `end`."""
    with self._changed:
      self._changed.wait_for(lambda: self._ended or self._room() > 0)
      return not self._ended

  def take(self, wanted: int) -> int:
    """Takes up to `wanted` bytes of those that may be sent now, if any."""
    with self._changed:
      size = max(min(wanted, self._room()), 0)
      self._stream -= size
      self._connection -= size
    return size

  def add(self, size: int, to_stream: bool) -> None:
    """Allows `size` bytes more, for the stream or for its connection."""
    with self._changed:
      if to_stream:
        self._stream += size
      else:
        self._connection += size
      self._changed.notify_all()

  def set_initial(self, size: int) -> None:
    """Changes what a stream is allowed at first, also after that."""
    if size > http2.LARGEST_WINDOW:
      raise http2.ProtocolError(f'a window of {size} bytes')
    with self._changed:
      # May take back more than there is left.
      self._stream += size - self._initial
      self._initial = size
      self._changed.notify_all()

  def end(self) -> None:
    """Ends every wait, also later ones."""
    with self._changed:
      self._ended = True
      self._changed.notify_all()

  def _room(self) -> int:
    return min(self._stream, self._connection)


class Sender:
  """Sends messages and control frames; any thread may post the latter.

  Attributes:
    target: the connected socket.
    window: what flow control allows.
    frame_bytes: of the largest frame that the server takes.
  """

  def __init__(self, target: socket.socket):
    """Sends nothing yet."""
    self.target = target
    self.window = SendWindow()
    self.frame_bytes = http2.FIRST_FRAME_BYTES
    # Held while the socket is written to, so that frames stay whole.
    self._writing = threading.Lock()
    self._control: collections.deque[bytes] = collections.deque()

  def send(self, buffers: Sequence[stream.Buffer]) -> None:
    """Sends bytes as frames of data; waits while the window is empty.

    Raises:
      OSError: if the window has ended or the connection is lost.
    """
    pieces = http2.Pieces(buffers)
    size = sum(len(buffer) for buffer in buffers)
    while size:
      if not self.window.wait():
        raise BrokenPipeError('the stream has ended')
      try:
        with self._writing:
          # Settings that take room back are acknowledged before this or after
          # it; what was taken earlier would come after, and be too much.
          allowed = self.window.take(min(size, _SEND_BYTES))
          frames = pieces.frames(allowed, self.frame_bytes)
          http2.send_all(self.target, frames)
        self._send_control()
      except OSError:
        # What is sent after half a frame would be taken for its rest.
        with contextlib.suppress(OSError):
          self.target.shutdown(socket.SHUT_WR)
        raise
      size -= allowed

  def post(self, frame: bytes) -> None:
    """Sends a control frame, after what is being sent at the moment."""
    if len(self._control) >= _MAX_CONTROL:
      raise http2.ProtocolError('control frames came without end')
    self._control.append(frame)
    # What came before the connection was lost can still be read.
    with contextlib.suppress(ConnectionError):
      self._send_control()

  def _send_control(self) -> None:
    # A thread that holds the lock does this too once it is free.
    while self._control and self._writing.acquire(blocking=False):
      try:
        with contextlib.suppress(IndexError):
          self.target.sendall(self._control.popleft())
      finally:
        self._writing.release()
