"""Which actors are away and may be on their way back.

Kept by the learner's side (`conversation`), so that `server` waits a moment for
them when the training ends: an actor that is not told looks on in vain.
"""

import asyncio
import contextlib

# Seconds after which nobody waits for an actor; it looks every five.
_SECONDS = 30.0
# Names to remember at most.
_MOST = 1000


class Absences:
  """Names of actors; everything runs in the event loop's thread."""

  def __init__(self) -> None:
    """Knows of nobody."""
    # The latest at the end.
    self._left: dict[str, float] = {}
    self._changed = asyncio.Event()

  def note_away(self, name: str, now: float) -> None:
    """Notes that an actor lost its stream, or found no room for one.

    Args:
      name: of the actor, which all of its streams share.
      now: seconds, of the loop's clock.
    """
    self._left.pop(name, None)
    self._left[name] = now
    if len(self._left) > _MOST:
      del self._left[next(iter(self._left))]

  def note_here(self, name: str) -> None:
    """Notes that an actor has a stream, or has been told of the end."""
    self._left.pop(name, None)
    self._changed.set()

  async def wait(self, seconds: float, now: float) -> None:
    """Waits for those that were here lately.

    Args:
      seconds: for all of them.
      now: as in `note_away`.
    """
    names = {n for n, left in self._left.items() if now - left < _SECONDS}
    with contextlib.suppress(TimeoutError):
      async with asyncio.timeout(seconds):
        while names & self._left.keys():
          self._changed.clear()
          await self._changed.wait()
