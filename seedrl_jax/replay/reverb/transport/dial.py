"""Connects to a port of a host, and can be left at any moment.

Used by `call.py`. Looking up a name cannot be interrupted, nor, on every
system, an attempt to connect. So a thread does both. It ends by itself, at the
latest when these have taken their time, also where nobody waits any more.
"""

import socket
import threading


class Dial:
  """An attempt to connect; one thread waits for it, any may cancel it."""

  def __init__(self, host: str, port: str):
    """Begins nothing yet."""
    self._place = host, port
    self._changed = threading.Condition()
    self._cancelled = False
    self._result: socket.socket | BaseException | None = None

  def connect(self, timeout: float) -> socket.socket:
    """Returns a connection, to the first of the host's addresses that answers.

    To be called once.

    Args:
      timeout: seconds for each address; the connection has it too.

    Raises:
      OSError: where none answers; also where it is cancelled.
      UnicodeError: of a host that is no name.
    """
    threading.Thread(
      target=self._run, args=(timeout,), name='reverb-dial', daemon=True
    ).start()
    with self._changed:
      self._changed.wait_for(lambda: self._cancelled or self._result)
      result, self._result = self._result, None
    if isinstance(result, BaseException):
      raise result
    if result is None or self._cancelled:
      if result is not None:
        result.close()
      raise ConnectionAbortedError('cancelled here')
    return result

  def cancel(self) -> None:
    """Ends `connect`, also one that has yet to begin."""
    with self._changed:
      self._cancelled = True
      self._changed.notify_all()

  def _run(self, timeout: float) -> None:
    result: socket.socket | BaseException
    try:
      result = socket.create_connection(self._place, timeout)
    except BaseException as e:
      result = e
    with self._changed:
      if not self._cancelled:
        self._result = result
        self._changed.notify_all()
        return
    if isinstance(result, socket.socket):
      result.close()
