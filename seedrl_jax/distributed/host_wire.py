"""JSON lines between the hosts of a run, and a timer for silent hosts."""

import contextlib
import json
import socket
import threading
import time
from typing import Any

SEND_SECONDS = 10.0  # to send a message or to connect
# Size limit of a message.
_MOST_BYTES = 1 << 26


class SilenceTimer:
  """Measures for how long another host has sent nothing.

  Counts ticks, not the clock, so that time in which this process was suspended
  does not count.
  """

  def __init__(self, timeout: float):
    self.tick = min(1.0, timeout / 10)
    self.timeout = timeout
    self._silent = 0.0
    self._last = time.monotonic()

  def heard(self) -> None:
    """Restarts the count."""
    self._silent = 0.0

  def is_over(self) -> bool:
    """Whether the host is silent for too long; call this once a `tick`."""
    now = time.monotonic()
    self._silent += min(now - self._last, 2 * self.tick)
    self._last = now
    return self._silent > self.timeout


class HostWire:
  """JSON lines over a socket, which it owns; any thread sends, one receives."""

  def __init__(self, connection: socket.socket):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    self._socket = connection
    self._file = connection.makefile('rb')
    self._lock = threading.Lock()

  def send(self, *message: Any) -> bool:
    """Sends a message; returns False if the other side is not reachable."""
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
