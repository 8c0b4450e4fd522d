"""The learner's end of the streams of actors.

One thread runs an event loop with gRPC's server; every stream of an actor is a
coroutine in it. A group of environments joins a `RemoteStream`, whose steps it
then carries there, and actions back. Made by `builder`, closed by `system`.
Whatever an actor sends can end its own stream, and no other.
"""

import asyncio
import contextlib
import dataclasses
import functools
import logging
import threading
import uuid
from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np

from seedrl_jax.actors import (
  addresses,
  handshake,
  remote_stream,
  runs,
  wire,
)
from seedrl_jax.envs import base

# Seconds for the first message; for streams to end when the training has; and
# for the thread to end after that.
_HELLO_SECONDS = 20.0
_END_SECONDS = 3.0
_CLOSE_SECONDS = 10.0
# Characters of what an actor says.
_MAX_REASON = 500
# Streams beyond one for each environment, which are in their handshake.
_MORE_STREAMS = 64
_KEEPALIVE_MS = 20_000

_STOPS = 'The learner stops.'

_Code = grpc.StatusCode
_log = logging.getLogger(__name__)


class _Refused(Exception):
  """A stream that must end, with gRPC's code; the text is for its actor."""

  def __init__(self, code: grpc.StatusCode, text: str):
    super().__init__(text)
    self.code = code


@dataclasses.dataclass(eq=False)
class _Connection:
  """One open stream.

  Attributes:
    context: gRPC's.
    task: its coroutine.
    answer: what it waits for, while its steps are with inference; None comes
      where the server closes.
  """

  context: grpc.aio.ServicerContext
  task: asyncio.Task
  answer: asyncio.Future[np.ndarray | None] | None = None


class ActorServer:
  """Listens for actors on behalf of some streams."""

  def __init__(
    self,
    spec: base.StreamSpec,
    env_values: dict[str, Any],
    streams: Sequence[remote_stream.RemoteStream],
    listening: Sequence[addresses.Address],
    security: addresses.Security,
    seed: Sequence[int],
    timeout: float,
  ):
    """Starts to listen.

    Args:
      spec: what one environment looks like.
      env_values: what actors make environments from, as
        `handshake.env_values` gives it.
      streams: take the environments; the emptiest first.
      listening: at least one address.
      security: certificate and token of the learner.
      seed: numbers that no other start of any run shares.
      timeout: seconds after which a silent actor is given up.

    Raises:
      ValueError: where it cannot listen there, or should not.
    """
    addresses.check_listening(listening, security)
    self._spec = spec
    self._env_values = env_values
    self._streams = tuple(streams)
    self._security = security
    self._timeout = timeout
    self._seeds = np.random.default_rng(list(seed))
    self._layout = wire.Layout(spec.observation)
    # Fails here where an option cannot be sent.
    handshake.pack_welcome(self._welcome(np.arange(1)))
    self._connections: set[_Connection] = set()
    self._ended = False
    self._is_closed = False
    self._loop = asyncio.new_event_loop()
    self._started = threading.Event()
    self._stopping: asyncio.Event | None = None
    self._failure: BaseException | None = None
    self.addresses: tuple[str, ...] = ()
    self._listening = tuple(listening)
    self._thread = threading.Thread(
      target=self._run, name='actors', daemon=True
    )
    self._start()

  def _start(self) -> None:
    """Starts the thread, and raises what kept it from listening."""
    self._thread.start()
    self._started.wait()
    if self._failure is not None:
      self._thread.join()
      raise self._failure

  @property
  def streams(self) -> tuple[remote_stream.RemoteStream, ...]:
    """The environments of all actors."""
    return self._streams

  @property
  def num_connected(self) -> int:
    """Environments that are there."""
    return sum(stream.num_connected for stream in self._streams)

  def close(self, ended: bool) -> None:
    """Ends all streams and the thread; may be called again.

    Args:
      ended: whether the training has reached its end: actors are then told to
        end, too. Else they keep looking for a learner to come back.
    """
    for stream in self._streams:
      stream.close()
    if self._is_closed:
      return
    # In this order, as streams look at both.
    self._ended = ended
    self._is_closed = True
    # A loop that failed is closed already.
    with contextlib.suppress(RuntimeError):
      self._loop.call_soon_threadsafe(self._wake)
    self._thread.join(2 * _END_SECONDS + _CLOSE_SECONDS)
    for address in self._listening:
      if address.is_unix:
        address.path.unlink(missing_ok=True)

  def _wake(self) -> None:
    if self._stopping is not None:
      self._stopping.set()

  # -- in the event loop's thread ----------------------------------------------

  def _run(self) -> None:
    try:
      self._loop.run_until_complete(self._serve_all())
    except BaseException as e:
      # Before the start is over, the constructor raises it; later, `recv`.
      self._failure = e
      for stream in self._streams:
        stream.fail(e)
    finally:
      self._loop.close()
      self._started.set()

  async def _serve_all(self) -> None:
    self._stopping = asyncio.Event()
    most = max(stream.batch_size for stream in self._streams)
    rpcs = sum(stream.num_envs for stream in self._streams) + _MORE_STREAMS
    size = max(self._layout.num_bytes(most), wire.MAX_JSON_BYTES + 64)
    server = grpc.aio.server(
      maximum_concurrent_rpcs=rpcs,
      options=(
        ('grpc.max_receive_message_length', size),
        ('grpc.max_send_message_length', -1),
        # Two learners would share a port and its actors.
        ('grpc.so_reuseport', 0),
        # Notices an actor whose machine went away.
        ('grpc.keepalive_time_ms', _KEEPALIVE_MS),
        ('grpc.keepalive_timeout_ms', _KEEPALIVE_MS),
        # The actors' own pings are welcome.
        ('grpc.http2.min_ping_interval_without_data_ms', _KEEPALIVE_MS // 4),
      ),
    )
    handler = grpc.stream_stream_rpc_method_handler(self._serve)
    server.add_generic_rpc_handlers((
      grpc.method_handlers_generic_handler(
        wire.SERVICE, {wire.METHOD: handler}
      ),
    ))
    try:
      self.addresses = tuple(
        addresses.listen(server, address, self._security)
        for address in self._listening
      )
      await server.start()
      self._started.set()
      await self._stopping.wait()
      await self._say_goodbye()
    finally:
      # With no time at all, gRPC calls it an error, and its clients say so.
      await server.stop(_END_SECONDS)

  async def _say_goodbye(self) -> None:
    """Ends all streams: their actors may end, or look for another learner."""
    connections = list(self._connections)
    for connection in connections:
      if connection.answer is not None and not connection.answer.done():
        connection.answer.set_result(None)
      elif not self._ended:
        connection.task.cancel()
      # Else they are told when they come with their steps.
    if connections:
      await asyncio.wait([c.task for c in connections], timeout=_END_SECONDS)

  async def _serve(self, _: Any, context: grpc.aio.ServicerContext) -> None:
    """One stream of an actor, from its first message to its last."""
    task = asyncio.current_task()
    assert task is not None
    connection = _Connection(context, task)
    self._connections.add(connection)
    try:
      await self._talk(connection)
    except wire.WireError as e:
      await context.abort(_Code.INVALID_ARGUMENT, str(e))
    except _Refused as e:
      await context.abort(e.code, str(e))
    except asyncio.CancelledError:
      if not self._is_closed:
        raise
      await context.abort(_Code.UNAVAILABLE, _STOPS)
    finally:
      self._connections.discard(connection)

  async def _talk(self, connection: _Connection) -> None:
    context = connection.context
    # Before anything that the stream says is looked at.
    if not addresses.is_admitted(
      context.invocation_metadata(), self._security.token
    ):
      raise _Refused(
        _Code.UNAUTHENTICATED, 'The token is not the one of this learner.'
      )
    message = await self._read(context, _HELLO_SECONDS)
    if message is None:
      return
    hello = handshake.unpack_hello(message)
    stream, run = self._join(hello)
    welcome = self._welcome(run.env_id)
    text = f'Actor {hello.name!r}, run {welcome.run_id}'
    _log.debug('%s: joins with %d environments.', text, hello.num_envs)
    try:
      await context.write(handshake.pack_welcome(welcome))
      await self._carry(connection, stream, run)
    finally:
      stream.leave(run)
      _log.debug('%s: leaves.', text)

  async def _carry(
    self,
    connection: _Connection,
    stream: remote_stream.RemoteStream,
    run: runs.Run,
  ) -> None:
    """Carries steps to inference and actions back until the stream ends."""
    context = connection.context
    while True:
      message = await self._read(context, self._timeout)
      if message is None:
        return
      if message.kind == wire.Kind.REFUSAL:
        reason = str(wire.unpack_json(message).get('reason'))
        _log.warning('An actor refuses: %r', reason[:_MAX_REASON])
        return
      rows = self._layout.unpack_steps(message)
      action = await self._ask(connection, stream, run, message.sequence, rows)
      if action is None and not self._ended:
        raise _Refused(_Code.UNAVAILABLE, _STOPS)
      if action is None:
        await context.write(wire.pack_json(wire.Kind.END, {}))
        return
      await context.write(wire.pack_actions(action, message.sequence))

  async def _read(
    self, context: grpc.aio.ServicerContext, seconds: float
  ) -> wire.Message | None:
    """Returns the next message; None where the actor has no more."""
    try:
      async with asyncio.timeout(seconds):
        data = await context.read()
    except TimeoutError:
      raise _Refused(
        _Code.DEADLINE_EXCEEDED, f'Nothing came for {seconds:g} s.'
      ) from None
    return None if data is grpc.aio.EOF else wire.parse(data)

  async def _ask(
    self,
    connection: _Connection,
    stream: remote_stream.RemoteStream,
    run: runs.Run,
    sequence: int,
    rows: wire.StepRows,
  ) -> np.ndarray | None:
    """Waits for inference; returns the actions, None at the server's end."""
    if self._is_closed:
      return None
    connection.answer = self._loop.create_future()
    deliver = functools.partial(_deliver, connection.answer)
    stream.submit(
      run,
      sequence,
      rows,
      lambda action: self._call_soon(deliver, action),
    )
    try:
      return await connection.answer
    finally:
      connection.answer = None

  def _call_soon(self, deliver: Any, action: np.ndarray) -> None:
    """Runs in the thread of inference."""
    try:
      self._loop.call_soon_threadsafe(deliver, action)
    except RuntimeError:
      # The loop has ended, and the actor's stream with it.
      if not self._is_closed:
        raise

  def _join(
    self, hello: handshake.Hello
  ) -> tuple[remote_stream.RemoteStream, runs.Run]:
    """Finds a place for a group.

    Raises:
      _Refused: where there is none, or never can be.
    """
    most = max(stream.batch_size for stream in self._streams)
    if hello.num_envs > most:
      raise _Refused(
        _Code.FAILED_PRECONDITION,
        f'A group of {hello.num_envs} environments is too large: '
        f'--config.actors.batch_size is {most}.',
      )
    for stream in sorted(self._streams, key=lambda s: -s.num_free):
      if hello.num_envs <= stream.batch_size:
        run = stream.join(hello.num_envs)
        if run is not None:
          return stream, run
    raise _Refused(
      _Code.RESOURCE_EXHAUSTED,
      f'There is no room for {hello.num_envs} more environments: '
      '--config.actors.max_envs are there.',
    )

  def _welcome(self, env_id: np.ndarray) -> handshake.Welcome:
    return handshake.Welcome(
      run_id=uuid.uuid4().hex,
      env_id=env_id,
      seed=int(self._seeds.integers(1 << 31)),
      env=self._env_values,
      spec=self._spec,
    )


def _deliver(
  answer: asyncio.Future[np.ndarray | None], action: np.ndarray
) -> None:
  # The stream may have ended meanwhile.
  if not answer.done():
    answer.set_result(action)
