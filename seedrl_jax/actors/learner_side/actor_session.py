"""The learner's side of one actor's stream.

Whatever an actor sends can end its own session, but no other.
"""

import asyncio
import functools
import logging

import grpc
import numpy as np

from seedrl_jax.actors import handshake, local_messages, wire
from seedrl_jax.actors.learner_side import server_state, slot_allocator
from seedrl_jax.actors.learner_side.slot_allocator import StreamRefused

# Seconds for the first message, and how many streams may wait for theirs: of
# more, the oldest are dropped.
_HELLO_SECONDS = 10.0
MAX_SILENT = 64
# Characters of an actor's reason that are logged.
_MAX_REASON = 500

_STOPS = 'The learner stops.'

_Code = grpc.StatusCode
# Codes after which the actor comes again.
_FOR_NOW = {_Code.RESOURCE_EXHAUSTED, _Code.DEADLINE_EXCEEDED}
_log = logging.getLogger(__name__)


class ActorSession:
  """Serves one stream in the event loop's thread."""

  def __init__(
    self,
    state: server_state.ServerState,
    context: grpc.aio.ServicerContext,
    task: asyncio.Task,
  ):
    self.task = task
    self._state = state
    self._context = context
    # The actor's; '' before its first message, and after it learns of the end
    # or refuses.
    self._name = ''
    # Actions for the steps that inference has; None if the server closes.
    self._answer: asyncio.Future[np.ndarray | None] | None = None
    self._is_writing = False

  async def serve(self) -> None:
    """Serves the actor until its stream ends, or has to be ended."""
    abort = self._context.abort
    try:
      await self._serve()
      # gRPC may end a killed actor's messages as if it had ended them itself.
      self._note_disconnected()
    except wire.WireError as e:
      await abort(_Code.INVALID_ARGUMENT, str(e))
    except StreamRefused as e:
      if e.code in _FOR_NOW:
        self._note_disconnected()
      await abort(e.code, str(e))
    except asyncio.CancelledError:
      # The actor was killed or cut off, or the server closes.
      self._note_disconnected()
      if not self._state.is_closed:
        raise
      await abort(_Code.UNAVAILABLE, _STOPS)

  def close(self) -> None:
    """Ends the session, as the server closes."""
    if self._answer is not None and not self._answer.done():
      self._answer.set_result(None)
    elif not self._state.ended and not self._is_writing:
      self.task.cancel()
    # Otherwise the actor learns of it with its next message, or after the
    # present write: gRPC cannot send a status after cutting off a message.

  def _note_disconnected(self) -> None:
    if self._name:
      self._state.disconnected.add(self._name, self._state.loop.time())

  async def _serve(self) -> None:
    # First of all, before any message is read.
    if not self._state.security.admits(self._context.invocation_metadata()):
      raise StreamRefused(
        _Code.UNAUTHENTICATED, 'The token is not the one of this learner.'
      )
    message = await self._read_first()
    if message is None:
      return
    hello = handshake.unpack_hello(message)
    self._name = hello.name
    if self._state.is_closed:
      await self._tell_end()
      return
    grant = self._state.allocator.allocate(hello)
    self._state.disconnected.discard(hello.name)
    try:
      await self._write(handshake.pack_welcome(grant.welcome))
      if grant.lease.acts_itself:
        await self._answer_reports(grant)
      else:
        await self._answer_steps(grant)
    finally:
      grant.stream.leave(grant.lease)
      _log.debug('Run %s leaves.', grant.welcome.run_id)

  async def _answer_steps(self, grant: slot_allocator.SlotGrant) -> None:
    codec = self._state.codec
    while (message := await self._read_next()) is not None:
      rows = codec.unpack_steps(message)
      action = await self._infer(grant, message.sequence, rows)
      if action is None:
        await self._tell_end()
        return
      await self._write(codec.pack_actions(action, message.sequence))

  async def _answer_reports(self, grant: slot_allocator.SlotGrant) -> None:
    state, feed = self._state, self._state.allocator.feed
    assert feed is not None
    while (message := await self._read_next()) is not None:
      report = local_messages.unpack_report(message)
      grant.stream.report(grant.lease, message.sequence, report)
      if state.is_closed:
        await self._tell_end()
        return
      answer = local_messages.NOTHING_NEWER
      if feed.has_newer(report.version):
        answer = await state.loop.run_in_executor(state.copying, feed.message)
      await self._write(answer)

  async def _tell_end(self) -> None:
    """Ends the stream: the training has ended, or only this learner."""
    if not self._state.ended:
      raise StreamRefused(_Code.UNAVAILABLE, _STOPS)
    # First, as the actor may hang up before the message counts as sent.
    self._state.disconnected.discard(self._name)
    self._name = ''
    await self._write(wire.pack_json(wire.MessageKind.END, {}))

  async def _read_next(self) -> wire.Message | None:
    """Returns the next message; None at the end or after a refusal."""
    seconds = self._state.timeout
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
    """Returns the first message; until then the stream counts as silent."""
    silent = self._state.silent
    if len(silent) >= MAX_SILENT:
      oldest = next(iter(silent))
      del silent[oldest]
      if not oldest.expired():
        oldest.reschedule(self._state.loop.time())
    deadline = asyncio.timeout(_HELLO_SECONDS)
    silent[deadline] = None
    try:
      return await self._read(deadline, 'No first message came in time.')
    finally:
      silent.pop(deadline, None)

  async def _read(
    self, deadline: asyncio.Timeout, complaint: str
  ) -> wire.Message | None:
    """Returns the next message; None at the end of the stream."""
    try:
      async with deadline:
        data = await self._context.read()
    except TimeoutError:
      raise StreamRefused(_Code.DEADLINE_EXCEEDED, complaint) from None
    if data is grpc.aio.EOF:
      return None
    self._state.num_bytes += len(data)
    return wire.parse(data)

  async def _write(self, message: bytes) -> None:
    self._state.num_bytes += len(message)
    self._is_writing = True
    try:
      await self._context.write(message)
    finally:
      self._is_writing = False
    if self._state.is_closed and not self._state.ended:
      raise StreamRefused(_Code.UNAVAILABLE, _STOPS)

  async def _infer(
    self, grant: slot_allocator.SlotGrant, sequence: int, rows: wire.StepRows
  ) -> np.ndarray | None:
    """Returns the actions for some steps; None if the server closes."""
    if self._state.is_closed:
      return None
    answer = self._answer = self._state.loop.create_future()
    deliver = functools.partial(self._deliver, answer)
    grant.stream.submit(grant.lease, sequence, rows, deliver)
    try:
      return await answer
    finally:
      self._answer = None

  def _deliver(self, answer: asyncio.Future, action: np.ndarray) -> None:
    """Hands over actions from the thread of inference."""
    try:
      self._state.loop.call_soon_threadsafe(_set_result, answer, action)
    except RuntimeError:
      # The loop and with it the stream have ended.
      if not self._state.is_closed:
        raise


def _set_result(answer: asyncio.Future, action: np.ndarray) -> None:
  # The stream may have ended meanwhile.
  if not answer.done():
    answer.set_result(action)
