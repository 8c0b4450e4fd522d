"""What all sessions of a server share, and which actors may come back."""

import asyncio
import concurrent.futures
import contextlib
import dataclasses

from seedrl_jax.actors import credentials, wire
from seedrl_jax.actors.learner_side import slot_allocator

# Seconds in which a disconnected actor is expected back; it looks every five.
_EXPECTED_SECONDS = 30.0
_MAX_NAMES = 1000


class DisconnectedActors:
  """Names of actors that lost their stream; for the event loop's thread only.

  When the training ends, the server waits a moment for them: an actor that is
  not told looks for the learner in vain.
  """

  def __init__(self) -> None:
    """Starts without any."""
    # When each was disconnected; the latest at the end.
    self._since: dict[str, float] = {}
    self._changed = asyncio.Event()

  def add(self, name: str, now: float) -> None:
    """Notes that an actor lost its stream, or found no room for one.

    Args:
      name: of the actor, which all of its streams share.
      now: seconds, of the loop's clock.
    """
    self._since.pop(name, None)
    self._since[name] = now
    if len(self._since) > _MAX_NAMES:
      del self._since[next(iter(self._since))]

  def discard(self, name: str) -> None:
    """Notes that an actor has a stream, or has been told of the end."""
    self._since.pop(name, None)
    self._changed.set()

  async def wait(self, seconds: float, now: float) -> None:
    """Waits, so long at most, until those that left lately are back."""
    names = {
      name
      for name, since in self._since.items()
      if now - since < _EXPECTED_SECONDS
    }
    with contextlib.suppress(TimeoutError):
      async with asyncio.timeout(seconds):
        while names & self._since.keys():
          self._changed.clear()
          await self._changed.wait()


@dataclasses.dataclass(eq=False)
class ServerState:
  """What all sessions of a server share.

  Attributes:
    loop: the event loop that they run in.
    allocator: gives actors their slots.
    security: has the token that they must show.
    codec: of their steps and actions.
    timeout: seconds after which a silent actor is given up.
    copying: the thread that copies parameters from their device.
    is_closed: whether the server closes; set from any thread.
    ended: whether the training has ended then; set before.
    num_bytes: of all messages, in both directions.
    disconnected: actors that may come back.
    silent: deadlines of the streams that wait for their first message, the
      oldest first.
  """

  loop: asyncio.AbstractEventLoop
  allocator: slot_allocator.SlotAllocator
  security: credentials.Security
  codec: wire.StreamCodec
  timeout: float
  copying: concurrent.futures.Executor
  is_closed: bool = False
  ended: bool = False
  num_bytes: int = 0
  disconnected: DisconnectedActors = dataclasses.field(
    default_factory=DisconnectedActors
  )
  silent: dict[asyncio.Timeout, None] = dataclasses.field(default_factory=dict)
