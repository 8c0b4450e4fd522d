"""Calls and streams to a Reverb server, and recovery if it is lost.

All users of a server share one `Connection`, so that one recovers for all.
"""

import abc
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import grpc

from seedrl_jax.replay import base
from seedrl_jax.replay.reverb import errors
from seedrl_jax.replay.reverb.proto import reverb_pb2

_SERVICE = '/deepmind.reverb.ReverbService/'
_RESPONSES: dict[str, Any] = {
  'ServerInfo': reverb_pb2.ServerInfoResponse,
  'MutatePriorities': reverb_pb2.Empty,
  'Checkpoint': reverb_pb2.CheckpointResponse,
}
# Seconds between attempts to reach a server.
_FIRST_WAIT, _LONGEST_WAIT = 0.05, 2.0
# Seconds that an attempt may take, and after which a server that was found
# counts as stable: more than a stream takes to fail.
_ATTEMPT, _STABLE = 5.0, 20.0
# Seconds in which a healthy server answers `info`, and any other call.
_GLANCE, _ANSWER = 2.0, 60.0
_CHANNEL_OPTIONS = (
  ('grpc.max_receive_message_length', -1),
  ('grpc.max_send_message_length', -1),
  # Otherwise the connection to a lost server could be used again.
  ('grpc.use_local_subchannel_pool', 1),
  # We retry ourselves. If a server shuts down while a call begins, gRPC's own
  # retries lose the call: it never ends, even if cancelled (seen in 1.85).
  ('grpc.enable_retries', 0),
  # Detects a machine that vanished. Servers close the connection if pings come
  # less than five minutes apart.
  ('grpc.keepalive_time_ms', 310_000),
  ('grpc.keepalive_timeout_ms', 20_000),
  # Otherwise a retry after a refused connection waits for a second.
  ('grpc.initial_reconnect_backoff_ms', 100),
  # Gives up a connection that nobody accepts.
  ('grpc.min_reconnect_backoff_ms', 5_000),
  ('grpc.enable_http_proxy', 0),
)


def open_channel(address: str) -> grpc.Channel:
  """Returns a channel to 'host:port', which the caller closes."""
  return grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)


def answers(address: str, timeout: float) -> bool:
  """Returns whether a Reverb server answers within `timeout` seconds."""
  with open_channel(address) as channel:
    # Without serializers, gRPC passes bytes through.
    call = channel.unary_unary(f'{_SERVICE}ServerInfo')
    try:
      call(b'', timeout=timeout, wait_for_ready=True)
    except grpc.RpcError:
      return False
  return True


class Connection:
  """A connection to one Reverb server; `generation` counts its recoveries."""

  def __init__(
    self,
    address: str | Callable[[], str],
    patience: float = 60.0,
    on_lost: Callable[[], None] = lambda: None,
  ):
    """Sends nothing yet.

    Args:
      address: 'host:port', or a function that returns it before every attempt.
      patience: seconds to keep trying to find a lost server.
      on_lost: called once for each loss, before the first attempt; may restart
        the server. Its exceptions end the connection.
    """
    self._read_address = address if callable(address) else lambda: address
    self._patience = patience
    self._on_lost = on_lost
    self._closed = threading.Event()
    # Guards the channel of unary calls.
    self._lock = threading.Lock()
    self._channel: grpc.Channel | None = None
    self._failure: BaseException | None = None
    # Held by the thread that looks for a lost server; others wait for it.
    self._recovery = threading.Lock()
    self.generation = 0
    self._last_found = self._deadline = -math.inf
    self._wait = 0.0
    self.address = self._read_address()

  def recover(self, generation: int, reason: str | None = None) -> None:
    """Waits until the server answers again, if it was lost in `generation`.

    `reason` is gRPC's for the loss. Raises StoreClosed after `close`, and
    ServerLost after `patience` seconds, also for all later callers.
    """
    with self._recovery:
      self.check()
      if generation != self.generation:
        return
      try:
        self._on_lost()
        self._reach(reason)
      except BaseException as e:
        if not isinstance(e, base.StoreClosed):
          self._failure = e
        raise
      self.generation += 1

  def check(self) -> None:
    """Raises the error that ended `recover`, or StoreClosed after `close`."""
    if self._closed.is_set():
      raise base.StoreClosed(f'The store at {self.address} was closed.')
    if self._failure is not None:
      raise self._failure

  def _reach(self, loss: str | None) -> None:
    # If a server that was found is lost again at once, the deadline stays and
    # the waits grow.
    if time.monotonic() - self._last_found > _STABLE:
      self._deadline = math.inf
      self._wait = 0.0
    self._deadline = min(self._deadline, time.monotonic() + self._patience)
    while True:
      self._closed.wait(self._wait)
      self.check()
      self._wait = min(max(2 * self._wait, _FIRST_WAIT), _LONGEST_WAIT)
      self.address = self._read_address()
      self._drop_channel()
      try:
        self._call('ServerInfo', reverb_pb2.Empty(), _ATTEMPT)
        if time.monotonic() < self._deadline:
          self._last_found = time.monotonic()
          return
        reason = f'it is lost again and again, {loss or "without a reason"}'
      except grpc.RpcError as e:
        self.check()
        reason = e.code().name
      if time.monotonic() + self._wait > self._deadline:
        raise errors.ServerLost(
          f'No Reverb server answers at {self.address}, tried for '
          f'{self._patience:g} s ({reason}); start it again there and resume '
          'the run.'
        )

  def server_info(
    self, recovers: bool = True
  ) -> Mapping[str, reverb_pb2.TableInfo]:
    """Returns the state of the server's tables by name.

    Raises ReverbError at once if the server is lost, unless it `recovers`.
    """
    response = self._unary(
      'ServerInfo',
      reverb_pb2.Empty(),
      'read the state',
      recovers=recovers,
      timeout=_ANSWER if recovers else _GLANCE,
    )
    return {info.name: info for info in response.table_info}

  def mutate(self, table: str, priorities: Mapping[int, float]) -> None:
    """Sets priorities by item key; the server ignores unknown keys."""
    request = reverb_pb2.MutatePrioritiesRequest(table=table)
    for key, priority in priorities.items():
      request.updates.add(key=key, priority=priority)
    self._unary('MutatePriorities', request, 'change priorities', table)

  def checkpoint(self, on_asked: Callable[[], None] | None = None) -> str:
    """Makes the server save its tables; returns the path on its machine."""
    request, doing = reverb_pb2.Empty(), 'write a checkpoint'
    # Without a time-out.
    response = self._unary(
      'Checkpoint', request, doing, timeout=None, on_asked=on_asked
    )
    return response.checkpoint_path

  def close(self) -> None:
    """Ends calls and recoveries under way; later ones raise StoreClosed."""
    self._closed.set()
    self._drop_channel()

  def _unary(
    self,
    method: str,
    request: Any,
    doing: str,
    table: str | None = None,
    recovers: bool = True,
    **options: Any,
  ) -> Any:
    """Calls until it works or fails for another reason than a lost server."""
    while True:
      generation = self.generation
      try:
        return self._call(method, request, **options)
      except grpc.RpcError as e:
        self.check()
        if not (recovers and errors.is_lost(e)):
          raise errors.translate(e, self.address, doing, table) from e
      self.recover(generation)

  def _call(
    self,
    method: str,
    request: Any,
    timeout: float | None = _ANSWER,
    on_asked: Callable[[], None] | None = None,
  ) -> Any:
    """Calls once; raises RpcError, also if the channel is closed meanwhile."""
    with self._lock:
      self.check()
      if self._channel is None:
        self._channel = open_channel(self.address)
      call = self._channel.unary_unary(
        _SERVICE + method,
        request_serializer=type(request).SerializeToString,
        response_deserializer=_RESPONSES[method].FromString,
      ).future(request, timeout=timeout)
    if on_asked is not None:
      on_asked()
    return call.result()

  def _drop_channel(self) -> None:
    """Ends unary calls under way; the next one reconnects."""
    with self._lock:
      channel, self._channel = self._channel, None
    if channel is not None:
      channel.close()


class TableStream(abc.ABC):
  """A thread that exchanges messages with a table of a server.

  If the server is lost, it goes on over a new stream once that is found again.
  """

  def __init__(
    self, connection: Connection, method: str, table: str, lock: threading.Lock
  ):
    """Makes a thread that has not started.

    `method` is 'insert' or 'sample'; `lock` guards the subclass.
    """
    self._connection = connection
    self._method = method
    self._table = table
    self._lock = lock
    # `_messages` waits for it.
    self._work = threading.Condition(lock)
    self._cancelled = False
    self._call: Any = None
    self._thread = threading.Thread(
      target=self._run, name=f'reverb-{method}-{table}', daemon=True
    )

  @abc.abstractmethod
  def _begin(self) -> None:
    """Prepares for a new stream; called with the lock held."""

  @abc.abstractmethod
  def _messages(self, ended: threading.Event) -> Iterator[bytes]:
    """Yields requests in gRPC's thread until `ended`, as `_work` tells."""

  @abc.abstractmethod
  def _take(self, response: bytes) -> None:
    """Takes a response; must not wait."""

  @abc.abstractmethod
  def _fail(self, error: BaseException) -> None:
    """Takes what ended the thread: a ReverbError, or as `recover` raises."""

  def cancel(self) -> None:
    """Ends the stream; the lock must not be held."""
    with self._lock:
      self._cancelled = True
      call = self._call
    if call is not None:
      call.cancel()

  def join(self) -> None:
    """Waits for the thread, if it started; close the connection before."""
    if self._thread.ident is not None:
      self._thread.join()

  def _run(self) -> None:
    try:
      while not self._cancelled:
        self._connection.check()
        generation, reason = self._connection.generation, None
        try:
          self._exchange()
        except grpc.RpcError as e:
          reason = e.details()
          if not self._cancelled and not errors.is_lost(e):
            raise errors.translate(
              e, self._connection.address, self._method, self._table
            ) from e
        if not self._cancelled:
          self._connection.recover(generation, reason)
    except BaseException as e:
      self._fail(e)

  def _exchange(self) -> None:
    """Exchanges messages over a new stream, with a connection of its own."""
    ended = threading.Event()
    with open_channel(self._connection.address) as channel:
      with self._lock:
        if self._cancelled:
          return
        self._begin()
        method = f'{_SERVICE}{self._method.capitalize()}Stream'
        open_stream = channel.stream_stream(method)
        self._call = call = open_stream(self._messages(ended))
      try:
        for response in call:
          self._take(response)
      finally:
        call.cancel()
        with self._lock:
          ended.set()
          self._work.notify_all()
