"""What HTTP/2's flow control lets a call send.

Used by `call.py`. RFC 9113, section 5.2: a sender may send as many bytes of
data as the receiver has allowed, for the call and for its whole connection.
"""

import threading

from seedrl_jax.replay.reverb.transport import http2


class SendWindow:
  """Bytes that may be sent; one thread takes, another adds."""

  def __init__(self) -> None:
    """Allows what every receiver allows at first."""
    self._changed = threading.Condition()
    self._initial = http2.FIRST_WINDOW
    self._call = self._connection = http2.FIRST_WINDOW
    self._ended = False

  def wait(self) -> bool:
    """Waits until something may be sent; False after `end`."""
    with self._changed:
      self._changed.wait_for(lambda: self._ended or self._room() > 0)
      return not self._ended

  def take(self, wanted: int) -> int:
    """Takes up to `wanted` bytes of those that may be sent now, if any."""
    with self._changed:
      size = max(min(wanted, self._room()), 0)
      self._call -= size
      self._connection -= size
    return size

  def add(self, size: int, to_call: bool) -> None:
    """Allows `size` bytes more, for the call or for its connection."""
    with self._changed:
      if to_call:
        self._call += size
      else:
        self._connection += size
      self._changed.notify_all()

  def set_initial(self, size: int) -> None:
    """Changes what a call is allowed at first, also after that."""
    if size > http2.LARGEST_WINDOW:
      raise http2.ProtocolError(f'a window of {size} bytes')
    with self._changed:
      # May take back more than there is left.
      self._call += size - self._initial
      self._initial = size
      self._changed.notify_all()

  def end(self) -> None:
    """Ends every wait, also later ones."""
    with self._changed:
      self._ended = True
      self._changed.notify_all()

  def _room(self) -> int:
    return min(self._call, self._connection)
