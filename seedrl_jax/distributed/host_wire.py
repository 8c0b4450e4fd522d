"""Messages between the hosts of a run: JSON lines, and their absence."""

import contextlib
import json
import socket
import threading
import time
from typing import Any

# Seconds to send a message or to make a connection.
SEND_SECONDS = 10.0
# Most bytes of a message.
_MOST_BYTES = 1 << 26


class SilenceTimer:
  """Measures for how long another host has sent nothing.

  It counts ticks of this process, not the clock: a process that was itself
  stopped for a while must not take the others for dead when it goes on.
  """

  def __init__(self, timeout: float):
    """Starts at zero; `timeout` is in seconds."""
    self.tick = min(1.0, timeout / 10)
    self.timeout = timeout
    self._silent = 0.0
    self._last = time.monotonic()

  def heard(self) -> None:
    """Starts again."""
    self._silent = 0.0

  def is_over(self) -> bool:
    """Whether the time-out is over; to be called once every `tick` seconds."""
    now = time.monotonic()
    self._silent += min(now - self._last, 2 * self.tick)
    self._last = now
    return self._silent > self.timeout


class HostWire:
  """JSON lines over a socket; any thread sends, one receives."""

  def __init__(self, connection: socket.socket):
    """Takes a connected socket, and owns it."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    self._socket = connection
    self._file = connection.makefile('rb')
    self._lock = threading.Lock()

  def send(self, *message: Any) -> bool:
    """Sends a message; returns whether the other side can be reached."""
    data = json.dumps(message, separators=(',', ':')).encode() + b'\n'
    try:
      with self._lock:
        self._socket.sendall(data)
    except OSError:
      return False
    return True

  def receive(self) -> list[Any] | None:
    """Returns the next message; None at the end or if it is not JSON."""
    try:
      line = self._file.readline(_MOST_BYTES)
      message = json.loads(line) if line.endswith(b'\n') else None
    except (OSError, ValueError):
      return None
    return message if isinstance(message, list) and message else None

  def close(self) -> None:
    """Closes the connection; wakes `receive`."""
    with contextlib.suppress(OSError):
      self._socket.shutdown(socket.SHUT_RDWR)
    self._socket.close()
