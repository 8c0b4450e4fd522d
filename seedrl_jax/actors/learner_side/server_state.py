"""What all sessions of a server share."""

import asyncio
import concurrent.futures
import contextlib

from seedrl_jax.actors import credentials, wire
from seedrl_jax.actors.learner_side import slot_allocator

# Seconds in which a disconnected actor is expected back; it tries every five.
_EXPECTED_SECONDS = 30.0
_MAX_NAMES = 1000


class DisconnectedActors:
  """Actors that lost their stream; for the event loop's thread only."""

  def __init__(self) -> None:
    # When each was disconnected; the latest at the end.
    self._since: dict[str, float] = {}
    self._changed = asyncio.Event()

  def add(self, name: str, now: float) -> None:
    """Notes at `now`, in the loop's time, that an actor lost its stream."""
    self._since.pop(name, None)
    self._since[name] = now
    if len(self._since) > _MAX_NAMES:
      del self._since[next(iter(self._since))]

  def discard(self, name: str) -> None:
    """Notes that an actor has a stream, or was sent the end."""
    self._since.pop(name, None)
    self._changed.set()

  async def wait(self, seconds: float, now: float) -> None:
    """Waits, at most `seconds`, for those that left lately to come back."""
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


class ServerState:
  """What all sessions of a server share.

  Attributes:
    timeout: seconds after which a silent actor is dropped.
    copying: the thread that copies parameters from their device.
    is_closed: whether the server closes; set from any thread.
    ended: whether the training has ended by then; set before `is_closed`.
    num_bytes: of all messages, in both directions.
    silent: deadlines of streams without a first message, the oldest first.
  """

  def __init__(
    self,
    loop: asyncio.AbstractEventLoop,
    allocator: slot_allocator.SlotAllocator,
    security: credentials.Security,
    timeout: float,
  ):
    self.loop = loop
    self.allocator = allocator
    self.security = security
    self.timeout = timeout
    self.codec = wire.StreamCodec(allocator.spec)
    self.copying = concurrent.futures.ThreadPoolExecutor(
      1, thread_name_prefix='actors-parameters'
    )
    self.is_closed = False
    self.ended = False
    self.num_bytes = 0
    self.disconnected = DisconnectedActors()
    self.silent: dict[asyncio.Timeout, None] = {}
