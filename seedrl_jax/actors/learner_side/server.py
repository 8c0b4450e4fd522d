"""The server of remote actors: gRPC's, in an event loop in one thread."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from seedrl_jax.actors import addresses, credentials, local_messages, wire
from seedrl_jax.actors.learner_side import (
  actor_session,
  remote_stream,
  server_state,
  slot_allocator,
)

# Seconds for streams to end once they need nothing more from their actors.
_END_SECONDS = 3.0
# Seconds for disconnected actors to come back and learn of the training's end:
# a bit more than they wait between two attempts.
_BACK_SECONDS = 6.0
# Seconds for the thread to end after that.
_CLOSE_SECONDS = 10.0
# Streams beyond one for each environment: those in their handshake, and as many
# that are ending.
_EXTRA_STREAMS = 2 * actor_session.MAX_SILENT
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
    """Starts to listen, or raises `ValueError`.

    Drops actors that are silent for `timeout` seconds.
    """
    addresses.check_listening(listening, security)
    self.streams: tuple[remote_stream.RemoteStream, ...] = allocator.streams
    self.addresses: tuple[str, ...] = ()
    self._listening = tuple(listening)
    self._state = server_state.ServerState(
      asyncio.new_event_loop(), allocator, security, timeout
    )
    self._sessions: set[actor_session.ActorSession] = set()
    self._started = threading.Event()
    self._stopping: asyncio.Event | None = None
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
  def num_bytes(self) -> int:
    """Bytes of all messages so far, in both directions."""
    return self._state.num_bytes

  @property
  def reported(self) -> local_messages.ReportTotals:
    total = local_messages.ReportTotals()
    for stream in self.streams:
      total.add(stream.reported)
    return total

  def metrics(self) -> dict[str, float]:
    reported = self.reported
    return {
      'actors/connected_envs': float(self.num_connected),
      'actors/stream_bytes': float(self.num_bytes),
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
      self._state.loop.call_soon_threadsafe(self._wake)
    self._thread.join(
      self._goodbye_seconds + 2 * _END_SECONDS + _BACK_SECONDS + _CLOSE_SECONDS
    )
    for address in self._listening:
      if address.is_unix:
        address.path.unlink(missing_ok=True)

  @property
  def _goodbye_seconds(self) -> float:
    """Seconds in which all actors send steps and learn of the end."""
    return _END_SECONDS + (self._state.timeout if self._state.ended else 0.0)

  def _wake(self) -> None:
    if self._stopping is not None:
      self._stopping.set()

  # -- in the event loop's thread ----------------------------------------------

  def _run(self) -> None:
    loop = self._state.loop
    try:
      loop.run_until_complete(self._serve_all())
    except BaseException as e:
      # The constructor raises it, or `recv` if the server has started.
      self._failure = e
      for stream in self.streams:
        stream.fail(e)
    finally:
      self._state.copying.shutdown()
      loop.close()
      self._started.set()

  async def _serve_all(self) -> None:
    self._stopping = asyncio.Event()
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
    try:
      self.addresses = tuple(
        addresses.listen(server, address, self._state.security)
        for address in self._listening
      )
      await server.start()
      self._started.set()
      await self._stopping.wait()
      await self._say_goodbye()
    finally:
      # With no grace period, gRPC's clients print an error.
      await server.stop(_END_SECONDS)
      # gRPC finishes a stream after our part of it, and complains if the loop
      # is closed before.
      rest = asyncio.all_tasks() - {asyncio.current_task()}
      if rest:
        await asyncio.wait(rest, timeout=_END_SECONDS)

  async def _say_goodbye(self) -> None:
    """Ends all streams; their actors end, or look for another learner."""
    sessions = list(self._sessions)
    for session in sessions:
      session.close()
    if sessions:
      tasks = [session.task for session in sessions]
      await asyncio.wait(tasks, timeout=self._goodbye_seconds)
    if self._state.ended:
      now = self._state.loop.time()
      await self._state.disconnected.wait(_BACK_SECONDS, now)

  async def _serve(self, _: Any, context: grpc.aio.ServicerContext) -> None:
    task = asyncio.current_task()
    assert task is not None
    session = actor_session.ActorSession(self._state, context, task)
    self._sessions.add(session)
    try:
      await session.serve()
    finally:
      self._sessions.discard(session)


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
