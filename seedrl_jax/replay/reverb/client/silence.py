"""Tells the user of a server that has not answered for long.

A server that was stopped keeps its connections: nothing else would say why the
run stands still.
"""

import threading
import time
from collections.abc import Callable

# Seconds until the first word; each later one takes twice as long.
_FIRST = 10.0


class Silence:
  """Counts how long a server has not answered; any thread may call it."""

  def __init__(
    self,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
  ):
    """Assumes a server that answers.

    Args:
      say: takes a sentence.
      clock: gives the time in seconds.
    """
    self._say = say
    self._clock = clock
    self._lock = threading.Lock()
    self._began: float | None = None
    self._next = _FIRST

  def asked(self) -> float:
    """Returns the time, for `unanswered`."""
    return self._clock()

  def unanswered(self, address: str, asked: float) -> None:
    """Notes that a question, asked then, has had no answer until now."""
    with self._lock:
      if self._began is None:
        self._began = asked
      seconds = self._clock() - self._began
      if seconds < self._next:
        return
      self._next = 2 * seconds
    self._say(f'Reverb at {address} has not answered for {seconds:.0f} s.')

  def answered(self, address: str) -> None:
    """Notes an answer."""
    with self._lock:
      was_told = self._next > _FIRST
      began, self._began, self._next = self._began, None, _FIRST
    if was_told and began is not None:
      seconds = self._clock() - began
      self._say(f'Reverb at {address} answers again, after {seconds:.0f} s.')
