"""Reports that a server has not answered for long.

A stopped server keeps its connections: nothing else would report it.
"""

import threading
import time
from collections.abc import Callable

# Seconds until the first message; each later one takes twice as long.
_FIRST = 10.0


class Silence:
  """Measures how long a server has not answered; thread-safe."""

  def __init__(
    self,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
  ):
    self._say = say
    self._clock = clock
    self._lock = threading.Lock()
    self._began: float | None = None
    self._next = _FIRST

  def asked(self) -> float:
    """Returns the time, for `unanswered`."""
    return self._clock()

  def unanswered(self, address: str, asked: float) -> None:
    """Notes that a request made at the time `asked` has no answer yet."""
    with self._lock:
      if self._began is None:
        self._began = asked
      seconds = self._clock() - self._began
      if seconds < self._next:
        return
      self._next = 2 * seconds
    self._say(f'Reverb at {address} has not answered for {seconds:.0f} s.')

  def answered(self, address: str) -> None:
    with self._lock:
      was_told = self._next > _FIRST
      began, self._began, self._next = self._began, None, _FIRST
    if was_told and began is not None:
      seconds = self._clock() - began
      self._say(f'Reverb at {address} answers again, after {seconds:.0f} s.')
