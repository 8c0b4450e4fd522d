"""The server of remote actors: gRPC's, in an event loop in one thread."""

import asyncio
import contextlib
import logging
import operator
import threading
from collections.abc import Awaitable, Sequence
from concurrent import futures
from typing import Any

import grpc
import numpy as np

from seedrl_jax import types
from seedrl_jax.actors import handshake, local_messages, wire
from seedrl_jax.actors.learner_side import remote_stream, slot_allocator
from seedrl_jax.actors.learner_side.slot_allocator import StreamRefused
from seedrl_jax.net import addresses, credentials

# Seconds for an actor's first message.
_HELLO_SECONDS = 10.0
# Seconds for streams to end once they need nothing more from their actors.
_END_SECONDS = 3.0
# If an actor left so lately, the training's end waits for so long until it is
# back to learn of it: a bit more than actors wait between two attempts.
_LATELY_SECONDS, _BACK_SECONDS = 30.0, 6.0
# Seconds for the thread to end after that.
_CLOSE_SECONDS = 10.0
# Streams beyond one for each environment: those that begin or end.
_EXTRA_STREAMS = 128
_KEEPALIVE_MS = 20_000

_Code = grpc.StatusCode
_log = logging.getLogger(__name__)


class _Session:
  """Serves one actor's stream in the event loop's thread.

  Whatever an actor sends can end its own session, but no other.
  """

  def __init__(self, server: 'ActorServer', context: grpc.aio.ServicerContext):
    self._server = server
    self._context = context
    # Of what the session waits for: a message, or actions from inference.
    self._deadline: asyncio.Timeout | None = None

  def close(self) -> None:
    """Ends what the session waits for, as the server closes."""
    if self._deadline is not None and not self._deadline.expired():
      self._deadline.reschedule(self._server.loop.time())
    # Otherwise it ends already, or writes: gRPC cannot send a status after
    # cutting that off.

  async def serve(self) -> None:
    """Serves the actor until its stream ends, or raises why it has to end."""
    # First of all, before any message is read.
    if not self._server.security.admits(self._context.invocation_metadata()):
      raise StreamRefused(
        _Code.UNAUTHENTICATED, 'The token is not the one of this learner.'
      )
    message = await self._read(_HELLO_SECONDS)
    if message is None:
      return
    grant = self._server.allocator.allocate(handshake.unpack_hello(message))
    try:
      await self._write(handshake.pack_welcome(grant.welcome))
      answer = (
        self._answer_report if grant.lease.acts_itself else self._answer_steps
      )
      while (message := await self._read(self._server.timeout)) is not None:
        await self._write(await answer(grant, message))
    finally:
      grant.stream.leave(grant.lease)
      _log.debug('Run %s leaves.', grant.welcome.run_id)

  async def _answer_report(
    self, grant: slot_allocator.SlotGrant, message: wire.Message
  ) -> bytes:
    server, offer = self._server, self._server.allocator.local
    assert offer is not None
    report = local_messages.unpack_report(message)
    # Uncounted steps may have ended episodes already.
    num_steps = report.work.env_steps + len(grant.lease.env_id)
    grant.stream.add_episodes(grant.lease, report.episodes, num_steps)
    total = map(operator.add, server.reported, report.work)
    server.reported = local_messages.Work(*total)
    feed = offer.feed
    if feed.has_newer(report.version):
      return await server.loop.run_in_executor(server.copying, feed.message)
    return local_messages.NOTHING_NEWER

  async def _read(self, seconds: float) -> wire.Message | None:
    """Returns the next message; None at the end of the stream."""
    data = await self._wait(self._context.read(), seconds)
    if data is grpc.aio.EOF:
      return None
    self._server.num_bytes += len(data)
    return wire.parse(data)

  async def _wait(self, what: Awaitable[Any], seconds: float | None) -> Any:
    try:
      left = 0 if self._server.is_closed else seconds
      async with asyncio.timeout(left) as self._deadline:
        return await what
    except TimeoutError:
      if self._server.is_closed:
        raise StreamRefused(_Code.UNAVAILABLE, 'The learner stops.') from None
      raise StreamRefused(
        _Code.DEADLINE_EXCEEDED, f'Nothing came for {seconds:g} s.'
      ) from None
    finally:
      self._deadline = None

  async def _write(self, message: bytes) -> None:
    self._server.num_bytes += len(message)
    await self._context.write(message)

  async def _answer_steps(
    self, grant: slot_allocator.SlotGrant, message: wire.Message
  ) -> bytes:
    """Returns the message with the actions of inference."""
    server = self._server
    answer = server.loop.create_future()

    def set_answer(action: np.ndarray) -> None:
      # The stream may have ended meanwhile.
      if not answer.done():
        answer.set_result(action)

    def deliver(action: np.ndarray) -> None:
      # In the thread of inference.
      try:
        server.loop.call_soon_threadsafe(set_answer, action)
      except RuntimeError:
        # The loop and with it the stream have ended.
        if not server.is_closed:
          raise

    steps = server.codec.unpack_steps(message)
    grant.stream.submit(grant.lease, *steps, deliver)
    return server.codec.pack_actions(await self._wait(answer, None))


class ActorServer:
  """Listens at `addresses` for the actors of some streams."""

  def __init__(
    self,
    allocator: slot_allocator.SlotAllocator,
    listening: Sequence[addresses.Address],
    security: credentials.Security,
    timeout: float,
  ):
    """Listens, or raises `ValueError`; drops actors silent for `timeout` s."""
    addresses.check_listening(listening, security)
    self.streams: tuple[remote_stream.RemoteStream, ...] = allocator.streams
    self.addresses: tuple[str, ...] = ()
    self._listening = tuple(listening)
    self.loop = asyncio.new_event_loop()
    self.allocator = allocator
    self.security = security
    self.timeout = timeout
    self.codec = wire.StreamCodec(allocator.spec)
    # Copies parameters from their device.
    self.copying = futures.ThreadPoolExecutor(1, 'actors-parameters')
    self.is_closed = False  # set from any thread, after `ended`
    self.ended = False  # whether the training has ended
    self.num_bytes = 0  # of all messages, in both directions
    # Of groups that act themselves.
    self.reported = local_messages.Work()
    self._sessions: set[_Session] = set()
    # When a stream last ended, in the loop's time.
    self._last_end = -float('inf')
    # Whether it listens, or what kept it from that.
    self._started = futures.Future[None]()
    self._stopping = asyncio.Event()
    self._thread = threading.Thread(
      target=self._run, name='actors', daemon=True
    )
    self._thread.start()
    self._started.result()

  @property
  def num_connected(self) -> int:
    """Number of environments that actors have brought."""
    return sum(stream.num_connected for stream in self.streams)

  def metrics(self) -> dict[str, float]:
    return {
      'actors/connected_envs': float(self.num_connected),
      'actors/stream_bytes': float(self.num_bytes),
      # Of actors that act themselves.
      'actors/store_bytes': float(self.reported.store_bytes),
      'actors/store_wait_s': self.reported.store_wait,
    }

  def close(self, ended: bool) -> None:
    """Ends all streams and the thread; may be called again.

    Actors end too if the training has `ended`; otherwise they look for a
    learner.
    """
    for stream in self.streams:
      stream.close()
    if self.is_closed:
      return
    # In this order, as sessions read both.
    self.ended = ended
    self.is_closed = True
    # A loop that failed is closed already.
    with contextlib.suppress(RuntimeError):
      self.loop.call_soon_threadsafe(self._stopping.set)
    self._thread.join(_BACK_SECONDS + 2 * _END_SECONDS + _CLOSE_SECONDS)

  # -- in the event loop's thread ----------------------------------------------

  def _run(self) -> None:
    loop = self.loop
    try:
      loop.run_until_complete(self._serve_all())
    except BaseException as e:
      # The constructor raises it, or `recv` if the server has started.
      if not self._started.done():
        self._started.set_exception(e)
      for stream in self.streams:
        stream.close(e)
    finally:
      self.copying.shutdown()
      loop.close()

  async def _serve_all(self) -> None:
    server = self._make_grpc_server()
    with contextlib.ExitStack() as cleanup:
      try:
        self.addresses = tuple(
          cleanup.enter_context(
            addresses.listening(server, address, self.security)
          )
          for address in self._listening
        )
        await server.start()
        self._started.set_result(None)
        await self._stopping.wait()
        for session in list(self._sessions):
          session.close()
        left = self.loop.time() - self._last_end
        if self.ended and left < _LATELY_SECONDS:
          await asyncio.sleep(_BACK_SECONDS)
      finally:
        # With no grace period, gRPC's clients print an error.
        await server.stop(_END_SECONDS)
        # gRPC finishes a stream after our part of it, and complains if the
        # loop is closed before.
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        if rest:
          await asyncio.wait(rest, timeout=_END_SECONDS)

  def _make_grpc_server(self) -> grpc.aio.Server:
    num_rows = max(stream.batch_size for stream in self.streams)
    num_slots = sum(stream.num_envs for stream in self.streams)
    max_bytes = max(
      self.codec.num_bytes(num_rows),
      wire.HEADER_BYTES + wire.MAX_JSON_BYTES,
      local_messages.MAX_REPORT_BYTES,
    )
    server = grpc.aio.server(
      maximum_concurrent_rpcs=num_slots + _EXTRA_STREAMS,
      options=(
        ('grpc.max_receive_message_length', max_bytes),
        ('grpc.max_send_message_length', -1),
        # Two learners would share a port and its actors.
        ('grpc.so_reuseport', 0),
        # Notices that an actor's machine is gone.
        ('grpc.keepalive_time_ms', _KEEPALIVE_MS),
        ('grpc.keepalive_timeout_ms', _KEEPALIVE_MS),
        # Allows the actors' own pings.
        ('grpc.http2.min_ping_interval_without_data_ms', _KEEPALIVE_MS // 4),
      ),
    )
    handler = grpc.stream_stream_rpc_method_handler(self._serve)
    server.add_generic_rpc_handlers([
      grpc.method_handlers_generic_handler(wire.SERVICE, {wire.METHOD: handler})
    ])
    return server

  async def _serve(self, _: Any, context: grpc.aio.ServicerContext) -> None:
    session = _Session(self, context)
    self._sessions.add(session)
    try:
      await session.serve()
    except wire.WireError as e:
      await context.abort(_Code.INVALID_ARGUMENT, str(e))
    except StreamRefused as e:
      # The training's end is no error.
      if e.code != _Code.UNAVAILABLE or not self.ended:
        await context.abort(e.code, str(e))
    finally:
      self._sessions.discard(session)
      if not self.is_closed:
        self._last_end = self.loop.time()


def make_server(
  config: types.Config,
  env_config: types.Config,
  env_spec: types.EnvSpec,
  sizes: Sequence[tuple[int, int]],
  seed: Sequence[int],
  socket: str,
  local: slot_allocator.LocalOffer | None = None,
) -> ActorServer:
  """Opens the streams for a run's actors and listens for them.

  Args:
    config, env_config: the sections `actors` and `env`.
    sizes: environments of each stream, and the most of them in a batch.
    seed: see `SlotAllocator`.
    socket: path of the unix socket, if no address is configured.
    local: for actors that act themselves; None: these are rejected.
  """
  streams = [
    remote_stream.RemoteStream(
      env_spec.stream,
      num_envs,
      batch_size,
      min(config.min_batch_size, batch_size),
      config.batch_timeout_ms / 1000,
    )
    for num_envs, batch_size in sizes
  ]
  allocator = slot_allocator.SlotAllocator(
    env_config.to_dict(), streams, seed, local
  )
  texts = config.addresses or (f'unix:{socket}',)
  return ActorServer(
    allocator,
    [addresses.parse('--config.actors.addresses', text) for text in texts],
    credentials.learner_security(config),
    config.timeout,
  )
