"""The learner's end of the streams of actors.

One thread runs an event loop with gRPC's server; every stream of an actor is a
coroutine in it, a `conversation`. A group of environments joins a
`RemoteStream`, whose steps it then carries there, and actions back; or, of an
actor that acts itself, reports there, and parameters back. Made by `service`,
closed by `system`.
"""

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Sequence
from typing import Any

import grpc

from seedrl_jax.actors import addresses, reports, wire
from seedrl_jax.actors.learner_side import (
  actor_session,
  remote_stream,
  slot_allocator,
)
from seedrl_jax.envs import base

# Seconds for streams to end that need nothing more from their actors.
_END_SECONDS = 3.0
# Seconds for actors that were lost to come and hear of the training's end: a
# bit more than they wait between two attempts.
_BACK_SECONDS = 6.0
# Seconds for the thread to end after all that.
_CLOSE_SECONDS = 10.0
# Streams beyond one for each environment: those in their handshake, and as many
# that are being ended.
_MORE_STREAMS = 2 * actor_session.MOST_SILENT
_KEEPALIVE_MS = 20_000


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
    local: slot_allocator.LocalOffer | None = None,
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
      local: for actors that act themselves; None: these are refused.

    Raises:
      ValueError: where it cannot listen there, or should not, or an option
        cannot be sent.
    """
    addresses.check_listening(listening, security)
    self._streams = tuple(streams)
    self._security = security
    # Copies parameters from their device, while the event loop goes on.
    self._copying = concurrent.futures.ThreadPoolExecutor(
      1, thread_name_prefix='actors-parameters'
    )
    admitting = slot_allocator.Admission(spec, env_values, streams, seed, local)
    self._loop = asyncio.new_event_loop()
    self._desk = actor_session.Desk(
      self._loop,
      admitting,
      security.token,
      wire.StreamCodec(spec),
      timeout,
      local.feed if local is not None else None,
      self._copying,
    )
    self._conversations: set[actor_session.Conversation] = set()
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

  @property
  def num_bytes(self) -> int:
    """Bytes of all messages so far, in both directions."""
    return self._desk.num_bytes

  @property
  def reported(self) -> reports.Work:
    """What actors that act themselves have done."""
    total = reports.Work()
    for stream in self._streams:
      total.add(stream.reported)
    return total

  def close(self, ended: bool) -> None:
    """Ends all streams and the thread; may be called again.

    Args:
      ended: whether the training has reached its end: actors are then told to
        end, too. Else they keep looking for a learner to come back.
    """
    for stream in self._streams:
      stream.close()
    if self._desk.is_closed:
      return
    # In this order, as streams look at both.
    self._desk.ended = ended
    self._desk.is_closed = True
    # A loop that failed is closed already.
    with contextlib.suppress(RuntimeError):
      self._loop.call_soon_threadsafe(self._wake)
    self._thread.join(
      self._goodbye_seconds + 2 * _END_SECONDS + _BACK_SECONDS + _CLOSE_SECONDS
    )
    for address in self._listening:
      if address.is_unix:
        address.path.unlink(missing_ok=True)

  @property
  def _goodbye_seconds(self) -> float:
    """Seconds in which all actors that are here hear of the end.

    Of the training's end they hear when they come with their steps, so that one
    whose environments are slow is waited for as ever.
    """
    return _END_SECONDS + (self._desk.timeout if self._desk.ended else 0.0)

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
      self._copying.shutdown()
      self._loop.close()
      self._started.set()

  async def _serve_all(self) -> None:
    self._stopping = asyncio.Event()
    most = max(stream.batch_size for stream in self._streams)
    rpcs = sum(stream.num_envs for stream in self._streams) + _MORE_STREAMS
    size = max(
      self._desk.codec.num_bytes(most),
      wire.HEADER_BYTES + wire.MAX_JSON_BYTES,
      reports.MAX_BYTES,
    )
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
      # gRPC ends its own part of a stream after ours; a loop that is closed
      # before would complain of it.
      rest = asyncio.all_tasks() - {asyncio.current_task()}
      if rest:
        await asyncio.wait(rest, timeout=_END_SECONDS)

  async def _say_goodbye(self) -> None:
    """Ends all streams: their actors may end, or look for another learner."""
    talking = list(self._conversations)
    for one in talking:
      one.say_goodbye()
    if talking:
      await asyncio.wait(
        [one.task for one in talking], timeout=self._goodbye_seconds
      )
    if self._desk.ended:
      await self._desk.lost.wait(_BACK_SECONDS, self._loop.time())

  async def _serve(self, _: Any, context: grpc.aio.ServicerContext) -> None:
    """One stream of an actor, from its first message to its last."""
    task = asyncio.current_task()
    assert task is not None
    one = actor_session.Conversation(self._desk, context, task)
    self._conversations.add(one)
    try:
      await one.talk()
    finally:
      self._conversations.discard(one)
