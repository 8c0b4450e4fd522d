"""What a learner and one actor say to each other, from the first message on.

`server` runs `Conversation.talk` as a coroutine for every stream. What an actor
sends can end its own conversation, and no other.
"""

import asyncio
import concurrent.futures
import dataclasses
import functools
import logging
from typing import Any

import grpc
import numpy as np

from seedrl_jax.actors import addresses, handshake, parameters, reports, wire
from seedrl_jax.actors.learner_side import disconnected_actors, slot_allocator

# Seconds for the first message, and streams that may be without one: of more,
# those that have said nothing for the longest make room.
_HELLO_SECONDS = 10.0
MOST_SILENT = 64
# Characters of what an actor says.
_MAX_REASON = 500

_STOPS = 'The learner stops.'

_Code = grpc.StatusCode
# The actor comes again.
_FOR_NOW = {_Code.RESOURCE_EXHAUSTED, _Code.DEADLINE_EXCEEDED}
_log = logging.getLogger(__name__)


@dataclasses.dataclass(eq=False)
class Desk:
  """What all conversations of a server share.

  Attributes:
    loop: that they run in.
    admission: lets actors in.
    token: that they must show.
    codec: of their steps and actions.
    timeout: seconds after which a silent actor is given up.
    feed: of parameters; None where no actor can act itself.
    copying: the thread that copies parameters from their device meanwhile.
    is_closed: whether the server closes; set from any thread.
    ended: whether the training has ended then; set before.
    num_bytes: of all messages, in both directions.
    lost: actors that may come back.
    silent: deadlines of the streams that wait for their first message, the
      oldest first.
  """

  loop: asyncio.AbstractEventLoop
  admission: slot_allocator.Admission
  token: str
  codec: wire.StreamCodec
  timeout: float
  feed: parameters.Feed | None
  copying: concurrent.futures.Executor
  is_closed: bool = False
  ended: bool = False
  num_bytes: int = 0
  lost: disconnected_actors.Absences = dataclasses.field(
    default_factory=disconnected_actors.Absences
  )
  silent: dict[asyncio.Timeout, None] = dataclasses.field(default_factory=dict)


class Conversation:
  """One stream; everything runs in the event loop's thread."""

  def __init__(
    self, desk: Desk, context: grpc.aio.ServicerContext, task: asyncio.Task
  ):
    """Says nothing yet.

    Args:
      desk: of the server.
      context: of the stream.
      task: its coroutine.
    """
    self.task = task
    self._desk = desk
    self._context = context
    # Of the actor, from its first message until it is told of the end or says
    # that it does not fit.
    self._name = ''
    # What it waits for while its steps are with inference; None comes where
    # the server closes.
    self._answer: asyncio.Future[np.ndarray | None] | None = None
    self._is_writing = False

  async def talk(self) -> None:
    """Goes on until the stream ends, and ends it where it must."""
    abort = self._context.abort
    try:
      await self._talk()
      # gRPC may also end the messages of one that was killed.
      self._note_away()
    except wire.WireError as e:
      await abort(_Code.INVALID_ARGUMENT, str(e))
    except slot_allocator.Refused as e:
      if e.code in _FOR_NOW:
        self._note_away()
      await abort(e.code, str(e))
    except asyncio.CancelledError:
      # So gRPC tells of an actor that was killed or cut off.
      self._note_away()
      if not self._desk.is_closed:
        raise
      await abort(_Code.UNAVAILABLE, _STOPS)

  def _note_away(self) -> None:
    if self._name:
      self._desk.lost.note_away(self._name, self._desk.loop.time())

  def say_goodbye(self) -> None:
    """Ends the conversation, as the server closes."""
    if self._answer is not None and not self._answer.done():
      self._answer.set_result(None)
    elif not self._desk.ended and not self._is_writing:
      self.task.cancel()
    # Else the actor is told when it comes with its steps, or its report, or
    # when what is being written has gone out: gRPC cannot say how a stream
    # ends while a message is cut off, and the actor would never hear of it.

  async def _talk(self) -> None:
    # Before anything that the stream says is looked at.
    if not addresses.is_admitted(
      self._context.invocation_metadata(), self._desk.token
    ):
      raise slot_allocator.Refused(
        _Code.UNAUTHENTICATED, 'The token is not the one of this learner.'
      )
    message = await self._read_first()
    if message is None:
      return
    hello = handshake.unpack_hello(message)
    self._name = hello.name
    if self._desk.is_closed:
      await self._end()
      return
    place = self._admit(hello)
    self._desk.lost.note_here(hello.name)
    try:
      await self._write(handshake.pack_welcome(place.welcome))
      if place.run.acts_itself:
        await self._inform(place)
      else:
        await self._carry(place)
    finally:
      place.stream.leave(place.run)
      _log.debug('Run %s leaves.', place.welcome.run_id)

  def _admit(self, hello: handshake.Hello) -> slot_allocator.Place:
    try:
      place = self._desk.admission.admit(hello)
    except slot_allocator.Refused as e:
      # An actor without room asks again and again.
      full = e.code == _Code.RESOURCE_EXHAUSTED
      level = logging.DEBUG if full else logging.WARNING
      _log.log(level, 'Actor %r is refused: %s', hello.name, e)
      raise
    _log.debug(
      'Actor %r joins as run %s with %d environments.',
      hello.name,
      place.welcome.run_id,
      hello.num_envs,
    )
    return place

  async def _carry(self, place: slot_allocator.Place) -> None:
    """Carries steps to inference and actions back until the stream ends."""
    while (message := await self._hear()) is not None:
      rows = self._desk.codec.unpack_steps(message)
      action = await self._ask(place, message.sequence, rows)
      if action is None:
        await self._end()
        return
      await self._write(self._desk.codec.pack_actions(action, message.sequence))

  async def _inform(self, place: slot_allocator.Place) -> None:
    """Takes reports and answers with parameters until the stream ends."""
    desk = self._desk
    assert desk.feed is not None
    while (message := await self._hear()) is not None:
      report = reports.unpack(message)
      place.stream.report(place.run, message.sequence, report)
      if desk.is_closed:
        await self._end()
        return
      answer = parameters.NOTHING_NEWER
      if desk.feed.has_newer(report.version):
        answer = await desk.loop.run_in_executor(
          desk.copying, desk.feed.message
        )
      await self._write(answer)

  async def _end(self) -> None:
    """Tells an actor that the training has ended, or that this learner has."""
    if not self._desk.ended:
      raise slot_allocator.Refused(_Code.UNAVAILABLE, _STOPS)
    # Before it is told, as it may have hung up before the message counts as
    # sent.
    self._desk.lost.note_here(self._name)
    self._name = ''
    await self._write(wire.pack_json(wire.MessageKind.END, {}))

  async def _hear(self) -> wire.Message | None:
    """Returns the next message of an actor that has joined.

    None where it has no more, also where it says why: people here are told.
    """
    seconds = self._desk.timeout
    message = await self._read(
      asyncio.timeout(seconds), f'Nothing came for {seconds:g} s.'
    )
    if message is None or message.kind != wire.MessageKind.REFUSAL:
      return message
    reason = str(wire.unpack_json(message).get('reason'))
    _log.warning('An actor refuses: %r', reason[:_MAX_REASON])
    self._name = ''
    return None

  async def _read_first(self) -> wire.Message | None:
    """Returns the first message; takes a place among the silent for it."""
    silent = self._desk.silent
    if len(silent) >= MOST_SILENT:
      oldest = next(iter(silent))
      del silent[oldest]
      if not oldest.expired():
        oldest.reschedule(self._desk.loop.time())
    deadline = asyncio.timeout(_HELLO_SECONDS)
    silent[deadline] = None
    try:
      return await self._read(deadline, 'No first message came in time.')
    finally:
      silent.pop(deadline, None)

  async def _read(
    self, deadline: asyncio.Timeout, complaint: str
  ) -> wire.Message | None:
    """Returns the next message; None where the actor has no more."""
    try:
      async with deadline:
        data = await self._context.read()
    except TimeoutError:
      raise slot_allocator.Refused(_Code.DEADLINE_EXCEEDED, complaint) from None
    if data is grpc.aio.EOF:
      return None
    self._desk.num_bytes += len(data)
    return wire.parse(data)

  async def _write(self, message: bytes) -> None:
    self._desk.num_bytes += len(message)
    self._is_writing = True
    try:
      await self._context.write(message)
    finally:
      self._is_writing = False
    if self._desk.is_closed and not self._desk.ended:
      raise slot_allocator.Refused(_Code.UNAVAILABLE, _STOPS)

  async def _ask(
    self, place: slot_allocator.Place, sequence: int, rows: wire.StepRows
  ) -> np.ndarray | None:
    """Waits for inference; returns the actions, None at the server's end."""
    if self._desk.is_closed:
      return None
    self._answer = self._desk.loop.create_future()
    deliver = functools.partial(_deliver, self._answer)
    place.stream.submit(
      place.run,
      sequence,
      rows,
      lambda action: self._call_soon(deliver, action),
    )
    try:
      return await self._answer
    finally:
      self._answer = None

  def _call_soon(self, deliver: Any, action: np.ndarray) -> None:
    """Runs in the thread of inference."""
    try:
      self._desk.loop.call_soon_threadsafe(deliver, action)
    except RuntimeError:
      # The loop has ended, and the actor's stream with it.
      if not self._desk.is_closed:
        raise


def _deliver(
  answer: asyncio.Future[np.ndarray | None], action: np.ndarray
) -> None:
  # The stream may have ended meanwhile.
  if not answer.done():
    answer.set_result(action)
