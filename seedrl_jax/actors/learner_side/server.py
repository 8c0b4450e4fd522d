"""The server of remote actors: gRPC's, in an event loop in one thread."""

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

import grpc

from seedrl_jax import types
from seedrl_jax.actors import handshake, local_messages, wire
from seedrl_jax.actors.learner_side import (
  actor_session,
  remote_stream,
  slot_allocator,
)
from seedrl_jax.net import addresses, credentials

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
    self._state = actor_session.ServerState(
      asyncio.new_event_loop(),
      allocator,
      security,
      timeout,
      wire.StreamCodec(allocator.spec),
      futures.ThreadPoolExecutor(1, thread_name_prefix='actors-parameters'),
    )
    self._sessions: set[actor_session.ActorSession] = set()
    # When a stream last ended, in the loop's time.
    self._last_end = -float('inf')
    self._started = threading.Event()
    self._stopping = asyncio.Event()
    self._failure: BaseException | None = None
    self._thread = threading.Thread(
      target=self._run, name='actors', daemon=True
    )
    self._start()

  def _start(self) -> None:
    """Starts the thread; raises what kept it from listening."""
    self._thread.start()
    self._started.wait()
    if self._failure is not None:
      self._thread.join()
      raise self._failure

  @property
  def num_connected(self) -> int:
    """Number of environments that actors have brought."""
    return sum(stream.num_connected for stream in self.streams)

  @property
  def reported(self) -> local_messages.ReportTotals:
    """Totals of groups that act themselves; a copy."""
    return dataclasses.replace(self._state.reported)

  def metrics(self) -> dict[str, float]:
    reported = self._state.reported
    return {
      'actors/connected_envs': float(self.num_connected),
      'actors/stream_bytes': float(self._state.num_bytes),
      # Of actors that act themselves.
      'actors/store_bytes': float(reported.store_bytes),
      'actors/store_wait_s': reported.store_wait,
    }

  def close(self, ended: bool) -> None:
    """Ends all streams and the thread; may be called again.

    Actors end too if the training has `ended`; otherwise they look for a
    learner.
    """
    for stream in self.streams:
      stream.close()
    if self._state.is_closed:
      return
    # In this order, as sessions read both.
    self._state.ended = ended
    self._state.is_closed = True
    # A loop that failed is closed already.
    with contextlib.suppress(RuntimeError):
      self._state.loop.call_soon_threadsafe(self._stopping.set)
    self._thread.join(_BACK_SECONDS + 2 * _END_SECONDS + _CLOSE_SECONDS)

  # -- in the event loop's thread ----------------------------------------------

  def _run(self) -> None:
    loop = self._state.loop
    try:
      loop.run_until_complete(self._serve_all())
    except BaseException as e:
      # The constructor raises it, or `recv` if the server has started.
      self._failure = e
      for stream in self.streams:
        stream.close(e)
    finally:
      self._state.copying.shutdown()
      loop.close()
      self._started.set()

  async def _serve_all(self) -> None:
    num_rows = max(stream.batch_size for stream in self.streams)
    num_slots = sum(stream.num_envs for stream in self.streams)
    server = _make_grpc_server(
      self._serve,
      max_streams=num_slots + _EXTRA_STREAMS,
      max_bytes=max(
        self._state.codec.num_bytes(num_rows),
        wire.HEADER_BYTES + wire.MAX_JSON_BYTES,
        local_messages.MAX_REPORT_BYTES,
      ),
    )
    with contextlib.ExitStack() as cleanup:
      try:
        self.addresses = tuple(
          cleanup.enter_context(
            addresses.listening(server, address, self._state.security)
          )
          for address in self._listening
        )
        await server.start()
        self._started.set()
        await self._stopping.wait()
        for session in list(self._sessions):
          session.close()
        left = self._state.loop.time() - self._last_end
        if self._state.ended and left < _LATELY_SECONDS:
          await asyncio.sleep(_BACK_SECONDS)
      finally:
        # With no grace period, gRPC's clients print an error.
        await server.stop(_END_SECONDS)
        # gRPC finishes a stream after our part of it, and complains if the
        # loop is closed before.
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        if rest:
          await asyncio.wait(rest, timeout=_END_SECONDS)

  async def _serve(self, _: Any, context: grpc.aio.ServicerContext) -> None:
    session = actor_session.ActorSession(self._state, context)
    self._sessions.add(session)
    try:
      await session.serve()
    finally:
      self._sessions.discard(session)
      if not self._state.is_closed:
        self._last_end = self._state.loop.time()


def _make_grpc_server(
  serve: Callable[..., Any], max_streams: int, max_bytes: int
) -> grpc.aio.Server:
  """Returns a server that runs `serve` for every stream."""
  server = grpc.aio.server(
    maximum_concurrent_rpcs=max_streams,
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
  methods = {wire.METHOD: grpc.stream_stream_rpc_method_handler(serve)}
  server.add_generic_rpc_handlers([
    grpc.method_handlers_generic_handler(wire.SERVICE, methods)
  ])
  return server


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
    handshake.env_values(env_config), streams, seed, local
  )
  texts = config.addresses or (f'unix:{socket}',)
  return ActorServer(
    allocator,
    [addresses.parse('--config.actors.addresses', text) for text in texts],
    credentials.learner_security(config),
    config.timeout,
  )
