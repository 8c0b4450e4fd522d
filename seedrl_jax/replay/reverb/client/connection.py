"""A Reverb server as a client sees it: calls, and losing it.

Made by the store, used by the streams. One `Connection` is shared by all that
talk to a server, so that when it is lost one of them finds it again for all.
"""

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import grpc
from absl import logging

from seedrl_jax.replay import base
from seedrl_jax.replay.reverb.client import errors, silence
from seedrl_jax.replay.reverb.proto import reverb_pb2
from seedrl_jax.replay.reverb.transport import call as call_lib

_SERVICE = '/deepmind.reverb.ReverbService/'
_OPTIONS = (
  ('grpc.max_receive_message_length', -1),
  ('grpc.max_send_message_length', -1),
  # Or a channel to a server that was lost would be used again.
  ('grpc.use_local_subchannel_pool', 1),
  # Notices a host that went away silently. Servers take pings on an idle
  # connection for an attack where they come within five minutes.
  ('grpc.keepalive_time_ms', 310_000),
  ('grpc.keepalive_timeout_ms', 20_000),
  # Or a server that came up just after a refusal would wait for a second.
  ('grpc.initial_reconnect_backoff_ms', 100),
  ('grpc.enable_http_proxy', 0),
)
# Of the wait between two attempts to reach a server, in seconds.
_FIRST_WAIT, _LONGEST_WAIT = 0.05, 2.0
# Seconds that an attempt may take, and those after which a server that was
# found counts as there: more than a stream takes to fail.
_ATTEMPT, _STABLE = 5.0, 20.0
# Seconds in which a server that is there answers a question.
_GLANCE = 2.0

_Response = TypeVar('_Response')


class Connection:
  """Reaches one Reverb server, wherever it is at the moment."""

  def __init__(
    self,
    address: str | Callable[[], str],
    patience: float = 60.0,
    on_lost: Callable[[], None] | None = None,
  ):
    """Prepares channels; nothing is sent yet.

    Args:
      address: 'host:port', or what returns it; asked before every attempt.
      patience: seconds to keep trying to find a lost server.
      on_lost: called once for each loss, in the thread that noticed it, before
        the first attempt; may start the server again. The seconds that it
        takes do not count. What it raises ends the connection.
    """
    self._read_address = address if callable(address) else lambda: address
    self._patience = patience
    self._on_lost = on_lost
    self._closed = threading.Event()
    self._failure: BaseException | None = None
    # Held by who looks for a lost server; the others wait for it.
    self._recovery = threading.Lock()
    self._lock = threading.Lock()
    self._calls: set[grpc.Future | call_lib.Call] = set()
    self._channel: grpc.Channel | None = None
    self._generation = 0
    self._found = self._deadline = -math.inf
    self._wait = 0.0
    # Why the last stream did not begin.
    self._refusal = ''
    self._address = self._read_address()
    self._silence = silence.Silence(logging.warning)

  @property
  def address(self) -> str:
    """Where the server was last looked for."""
    return self._address

  @property
  def generation(self) -> int:
    """How often the server was lost and found again."""
    return self._generation

  @property
  def closed(self) -> bool:
    """Whether `close` was called."""
    return self._closed.is_set()

  def open_call(self, method: str) -> call_lib.Call:
    """Returns a streaming call to a server that is there; the caller closes it.

    Raises:
      StoreClosed, ServerLost: as `recover`.
    """
    while True:
      self.check()
      generation = self._generation
      call = call_lib.Call(self._address, _SERVICE + method)
      with self._lock:
        self._calls.add(call)
      if self._closed.is_set():
        call.cancel()
      try:
        call.begin(_ATTEMPT)
        self._refusal = ''
        return call
      except call_lib.CallError as e:
        self._refusal = e.details()
      finally:
        with self._lock:
          self._calls.discard(call)
      self.recover(generation)

  def _probe(self, channel: grpc.Channel) -> None:
    """Asks the server for a sign of life over a channel."""
    empty = reverb_pb2.Empty
    self._call(channel, 'ServerInfo', empty(), empty, _ATTEMPT)

  def recover(self, generation: int) -> None:
    """Returns when the server answers again after a loss.

    Args:
      generation: of this connection when the caller's call was opened.

    Raises:
      StoreClosed: where the connection was closed meanwhile.
      ServerLost: after `patience` seconds, then and for all later callers.
    """
    with self._recovery:
      self.check()
      if generation != self._generation:
        return
      try:
        if self._on_lost is not None:
          self._on_lost()
        self._reach()
      except base.StoreClosed:
        raise
      except BaseException as e:
        self._failure = e
        raise
      self._generation += 1

  def check(self) -> None:
    """Raises what `recover` ended with, or StoreClosed after `close`."""
    if self._closed.is_set():
      raise base.StoreClosed(f'The store at {self._address} was closed.')
    if self._failure is not None:
      raise self._failure

  def _reach(self) -> None:
    """Tries again and again until a server answers."""
    # One that answers and is lost again at once has not been found: the time
    # runs on, and the waits grow.
    if time.monotonic() - self._found > _STABLE:
      self._deadline = math.inf
      self._wait = 0.0
    self._deadline = min(self._deadline, time.monotonic() + self._patience)
    while True:
      self._closed.wait(self._wait)
      self.check()
      self._wait = min(max(2 * self._wait, _FIRST_WAIT), _LONGEST_WAIT)
      self._address = self._read_address()
      self._drop_channel()
      try:
        self._probe(self._shared_channel())
        if time.monotonic() < self._deadline:
          self._found = time.monotonic()
          return
        reason = 'it is lost again and again'
        if self._refusal:
          reason += f', {self._refusal}'
      except grpc.RpcError as e:
        reason = e.code().name
      except grpc.FutureCancelledError:
        self.check()
        raise
      if time.monotonic() + self._wait > self._deadline:
        raise errors.ServerLost(
          f'No Reverb server answers at {self._address}, tried for '
          f'{self._patience:g} s ({reason}); start it again there and resume '
          'the run.'
        )

  def server_info(
    self, timeout: float = 60.0
  ) -> Mapping[str, reverb_pb2.TableInfo]:
    """Returns what the server says of its tables, by name."""
    response = self._unary(
      'ServerInfo',
      reverb_pb2.Empty(),
      reverb_pb2.ServerInfoResponse,
      timeout,
      'read the state',
    )
    return {info.name: info for info in response.table_info}

  def peek(self) -> Mapping[str, reverb_pb2.TableInfo]:
    """Returns `server_info` where the server answers at once.

    Raises:
      StoreClosed: where the connection is closed.
      ReverbError: where it does not; nobody looks for it on this account.
    """
    self.check()
    asked = self._silence.asked()
    try:
      response = self._call(
        self._shared_channel(),
        'ServerInfo',
        reverb_pb2.Empty(),
        reverb_pb2.ServerInfoResponse,
        _GLANCE,
      )
    except (grpc.RpcError, grpc.FutureCancelledError) as e:
      self.check()
      self._silence.unanswered(self._address, asked)
      raise errors.ServerLost(
        f'The Reverb server at {self._address} does not answer at the moment.'
      ) from e
    self._silence.answered(self._address)
    return {info.name: info for info in response.table_info}

  def mutate(
    self,
    table: str,
    priorities: Mapping[int, float],
    deletes: Iterable[int] = (),
    timeout: float = 60.0,
  ) -> None:
    """Sets priorities by item key and deletes items; ignores unknown keys."""
    key_with_priority = reverb_pb2.MutatePrioritiesRequest.KeyWithPriority
    request = reverb_pb2.MutatePrioritiesRequest(
      table=table,
      updates=[
        key_with_priority(key=key, priority=priority)
        for key, priority in priorities.items()
      ],
      delete_keys=deletes,
    )
    self._unary(
      'MutatePriorities',
      request,
      reverb_pb2.Empty,
      timeout,
      'change priorities',
      table,
    )

  def reset(self, table: str, timeout: float = 60.0) -> None:
    """Removes everything from a table."""
    request = reverb_pb2.ResetRequest(table=table)
    self._unary('Reset', request, reverb_pb2.Empty, timeout, 'reset', table)

  def checkpoint(
    self,
    on_asked: Callable[[], None] | None = None,
    timeout: float | None = None,
  ) -> str:
    """Has the server save its tables; returns the path, on its machine.

    Args:
      on_asked: called when the request is on its way, each time that it is.
      timeout: seconds for the answer; None: as long as it takes.
    """
    response = self._unary(
      'Checkpoint',
      reverb_pb2.Empty(),
      reverb_pb2.CheckpointResponse,
      timeout,
      'write a checkpoint',
      on_asked=on_asked,
    )
    return response.checkpoint_path

  def close(self) -> None:
    """Ends calls and recoveries under way; later ones raise StoreClosed."""
    self._closed.set()
    with self._lock:
      calls, self._calls = self._calls, set()
    for call in calls:
      call.cancel()
    self._drop_channel()

  def _unary(
    self,
    method: str,
    request: Any,
    response: type[_Response],
    timeout: float | None,
    doing: str,
    table: str | None = None,
    on_asked: Callable[[], None] | None = None,
  ) -> _Response:
    """Calls until it works or fails for another reason than a lost server.

    Raises:
      StoreClosed: where the connection is closed, before or during the call.
      ReverbError: in one sentence.
    """
    while True:
      self.check()
      generation = self._generation
      try:
        return self._call(
          self._shared_channel(), method, request, response, timeout, on_asked
        )
      except grpc.RpcError as e:
        self.check()
        if not errors.is_lost(e):
          raise errors.translate(e, self._address, doing, table) from e
      except grpc.FutureCancelledError:
        # Another thread noticed the loss first and closed the channel.
        self.check()
      self.recover(generation)

  def _call(
    self,
    channel: grpc.Channel,
    method: str,
    request: Any,
    response: type[_Response],
    timeout: float | None,
    on_asked: Callable[[], None] | None = None,
  ) -> _Response:
    """Calls once; `close` cancels it."""
    with self._lock:
      try:
        call = channel.unary_unary(
          _SERVICE + method,
          request_serializer=type(request).SerializeToString,
          response_deserializer=response.FromString,  # type: ignore[attr-defined]
        ).future(request, timeout=timeout)
      except ValueError as e:
        # Another thread noticed a loss and closed the channel.
        raise grpc.FutureCancelledError from e
      self._calls.add(call)
    if self._closed.is_set():
      call.cancel()
    try:
      if on_asked is not None:
        on_asked()
      return call.result()
    finally:
      with self._lock:
        self._calls.discard(call)

  def _shared_channel(self) -> grpc.Channel:
    """Returns the channel of all unary calls."""
    with self._lock:
      if self._channel is None:
        self._channel = grpc.insecure_channel(self._address, options=_OPTIONS)
      return self._channel

  def _drop_channel(self) -> None:
    with self._lock:
      channel, self._channel = self._channel, None
    if channel is not None:
      channel.close()
