"""The learner's side of one actor's stream.

Whatever an actor sends can end its own session, but no other.
"""

import asyncio
import concurrent.futures
import dataclasses
import functools
import logging

import grpc
import numpy as np

from seedrl_jax.actors import handshake, local_messages, wire
from seedrl_jax.actors.learner_side import slot_allocator
from seedrl_jax.actors.learner_side.slot_allocator import StreamRefused
from seedrl_jax.net import credentials

# Seconds for the first message.
_HELLO_SECONDS = 10.0

_Code = grpc.StatusCode
_log = logging.getLogger(__name__)


@dataclasses.dataclass
class ServerState:
  """What all sessions of a server share."""

  loop: asyncio.AbstractEventLoop
  allocator: slot_allocator.SlotAllocator
  security: credentials.Security
  timeout: float  # seconds after which a silent actor is dropped
  codec: wire.StreamCodec
  copying: concurrent.futures.Executor  # copies parameters from their device
  is_closed: bool = False  # set from any thread, after `ended`
  ended: bool = False  # whether the training has ended
  num_bytes: int = 0  # of all messages, in both directions
  # Totals of groups that act themselves.
  reported: local_messages.ReportTotals = dataclasses.field(
    default_factory=local_messages.ReportTotals
  )


class _ServerCloses(Exception):
  """The server closes; the actor must learn of it."""


class ActorSession:
  """Serves one stream in the event loop's thread."""

  def __init__(self, state: ServerState, context: grpc.aio.ServicerContext):
    self._state = state
    self._context = context
    # What the session waits for: actions from inference, None if the server
    # closes, or a message.
    self._answer: asyncio.Future[np.ndarray | None] | None = None
    self._deadline: asyncio.Timeout | None = None

  async def serve(self) -> None:
    """Serves the actor until its stream ends, or has to be ended."""
    try:
      await self._serve()
    except wire.WireError as e:
      await self._context.abort(_Code.INVALID_ARGUMENT, str(e))
    except StreamRefused as e:
      await self._context.abort(e.code, str(e))
    except _ServerCloses:
      if not self._state.ended:
        await self._context.abort(_Code.UNAVAILABLE, 'The learner stops.')
      await self._write(wire.pack_json(wire.MessageKind.END, {}))

  def close(self) -> None:
    """Ends what the session waits for, as the server closes."""
    if self._answer is not None and not self._answer.done():
      self._answer.set_result(None)
    elif self._deadline is not None and not self._deadline.expired():
      self._deadline.reschedule(self._state.loop.time())
    # Otherwise it ends already, or writes: gRPC cannot send a status after
    # cutting that off.

  async def _serve(self) -> None:
    # First of all, before any message is read.
    if not self._state.security.admits(self._context.invocation_metadata()):
      raise StreamRefused(
        _Code.UNAUTHENTICATED, 'The token is not the one of this learner.'
      )
    message = await self._read(_HELLO_SECONDS)
    if message is None:
      return
    grant = self._state.allocator.allocate(handshake.unpack_hello(message))
    try:
      await self._write(handshake.pack_welcome(grant.welcome))
      answer = (
        self._answer_report if grant.lease.acts_itself else self._answer_steps
      )
      while (message := await self._read(self._state.timeout)) is not None:
        await self._write(await answer(grant, message))
    finally:
      grant.stream.leave(grant.lease)
      _log.debug('Run %s leaves.', grant.welcome.run_id)

  async def _answer_report(
    self, grant: slot_allocator.SlotGrant, message: wire.Message
  ) -> bytes:
    state, feed = self._state, self._state.allocator.feed
    assert feed is not None
    report = local_messages.unpack_report(message)
    grant.lease.accept_report(message.sequence, report)
    grant.stream.add_episodes(grant.lease, report.episodes)
    state.reported.add(report)
    if feed.has_newer(report.version):
      return await state.loop.run_in_executor(state.copying, feed.message)
    return local_messages.NOTHING_NEWER

  async def _read(self, seconds: float) -> wire.Message | None:
    """Returns the next message; None at the end of the stream."""
    if self._state.is_closed:
      raise _ServerCloses
    try:
      async with asyncio.timeout(seconds) as self._deadline:
        data = await self._context.read()
    except TimeoutError:
      if self._state.is_closed:
        raise _ServerCloses from None
      raise StreamRefused(
        _Code.DEADLINE_EXCEEDED, f'Nothing came for {seconds:g} s.'
      ) from None
    finally:
      self._deadline = None
    if data is grpc.aio.EOF:
      return None
    self._state.num_bytes += len(data)
    return wire.parse(data)

  async def _write(self, message: bytes) -> None:
    self._state.num_bytes += len(message)
    await self._context.write(message)

  async def _answer_steps(
    self, grant: slot_allocator.SlotGrant, message: wire.Message
  ) -> bytes:
    """Returns the message with the actions of inference."""
    if self._state.is_closed:
      raise _ServerCloses
    answer = self._answer = self._state.loop.create_future()
    deliver = functools.partial(self._deliver, answer)
    try:
      steps = self._state.codec.unpack_steps(message)
      grant.stream.submit(grant.lease, message.sequence, *steps, deliver)
      action = await answer
    finally:
      self._answer = None
    if action is None:
      raise _ServerCloses
    return self._state.codec.pack_actions(action, message.sequence)

  def _deliver(self, answer: asyncio.Future, action: np.ndarray) -> None:
    """Hands over actions from the thread of inference."""

    def set_result() -> None:
      # The stream may have ended meanwhile.
      if not answer.done():
        answer.set_result(action)

    try:
      self._state.loop.call_soon_threadsafe(set_result)
    except RuntimeError:
      # The loop and with it the stream have ended.
      if not self._state.is_closed:
        raise
