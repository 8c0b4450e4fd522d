"""An actor: groups of environments that a learner elsewhere acts for.

`launch/actor.py` runs each group in a thread. A group finds its learner, makes
the environments that it is told to, and carries their steps there and actions
back; when the learner is lost it looks for it again. Two groups or more keep a
host busy: one steps while another's actions are on their way. Needs neither
JAX nor a configuration.
"""

import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import grpc
import numpy as np

from seedrl_jax.actors import addresses, handshake, wire
from seedrl_jax.envs import base, factory, local_stream, statistics

# Seconds of the first wait and the longest one between two attempts, and those
# that connecting may take.
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0
_ATTEMPT = 10.0
_KEEPALIVE_MS = 20_000
_OPTIONS = (
  ('grpc.max_receive_message_length', -1),
  ('grpc.max_send_message_length', -1),
  # A connection for every group: one is not fast enough for all.
  ('grpc.use_local_subchannel_pool', 1),
  # Notices a learner whose machine went away.
  ('grpc.keepalive_time_ms', _KEEPALIVE_MS),
  ('grpc.keepalive_timeout_ms', _KEEPALIVE_MS),
  ('grpc.http2.max_pings_without_data', 0),
  ('grpc.enable_http_proxy', 0),
)
_METHOD = f'/{wire.SERVICE}/{wire.METHOD}'
_Code = grpc.StatusCode
_CONNECTING = {
  grpc.ChannelConnectivity.IDLE,
  grpc.ChannelConnectivity.CONNECTING,
}
# Trying again would not help.
_FATAL = {
  _Code.FAILED_PRECONDITION,
  _Code.INVALID_ARGUMENT,
  _Code.PERMISSION_DENIED,
  _Code.UNAUTHENTICATED,
  _Code.UNIMPLEMENTED,
}


class ActorError(RuntimeError):
  """An actor and its learner cannot work together; says why."""


class _Lost(Exception):
  """The learner is not there (any more); says why."""


class GroupOptions(NamedTuple):
  """What a group is asked to do.

  Attributes:
    address: of the learner.
    security: whom to trust, and the token to show.
    num_envs: environments of the group.
    num_groups: groups of this process, which share its cores.
    num_threads: threads for the environments; 0: what the cores allow.
    affinity: first processor for these threads; -1: any.
    patience: seconds to look for a learner that is not there; 0: for ever.
    name: of the actor, for messages.
  """

  address: addresses.Address
  security: addresses.Security
  num_envs: int
  num_groups: int = 1
  num_threads: int = 0
  affinity: int = -1
  patience: float = 0.0
  name: str = 'actor'


class Group:
  """Environments that share a stream to the learner."""

  def __init__(self, options: GroupOptions, say: Callable[[str], None] = print):
    """Prepares a group; `run` looks for the learner.

    Args:
      options: see `GroupOptions`.
      say: takes a line for people.

    Raises:
      ValueError: where the learner must not be called like that.
    """
    addresses.check_calling(options.address, options.security)
    self._options = options
    self._say = say
    self._stop = threading.Event()
    self._lock = threading.Lock()
    # What `stop` wakes: the group waits for its channel, or in its call.
    self._states: queue.SimpleQueue[grpc.ChannelConnectivity | None]
    self._states = queue.SimpleQueue()
    self._call: Any = None
    self._found = time.monotonic()  # when a learner was last there
    self._wait = 0.0

  def run(self) -> bool:
    """Serves until the training ends or `stop` is called.

    Returns:
      Whether the training has ended.

    Raises:
      ActorError: where learner and actor do not fit each other, or no learner
        was found in time.
    """
    while not self._stop.is_set():
      try:
        if self._serve():
          return True
      except _Lost as e:
        self._back_off(e)
    return False

  def stop(self) -> None:
    """Ends `run`, from any thread."""
    self._stop.set()
    with self._lock:
      self._states.put(None)
      if self._call is not None:
        self._call.cancel()

  def _back_off(self, reason: _Lost) -> None:
    """Waits before the next attempt, longer each time."""
    if self._stop.is_set():
      return
    options = self._options
    away = time.monotonic() - self._found
    if options.patience and away >= options.patience:
      raise ActorError(
        f'No learner at {options.address.text} for {options.patience:g} s: '
        f'{reason}'
      )
    if not self._wait:
      self._say(f'Looking for the learner: {reason}')
    self._wait = min(max(2 * self._wait, _FIRST_WAIT), _LONGEST_WAIT)
    # Actors that lost their learner together do not all come back together.
    self._stop.wait(self._wait * random.uniform(0.5, 1.0))

  def _serve(self) -> bool:
    """Serves one learner; returns whether its training has ended.

    Raises:
      _Lost: where trying again may help.
      ActorError: where it does not.
    """
    options = self._options
    channel = addresses.open_channel(
      options.address, options.security, _OPTIONS
    )
    outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    try:
      call = self._open(channel, outgoing)
      return self._talk(call, outgoing)
    except grpc.RpcError as e:
      raise self._translate(e) from e
    except wire.WireError as e:
      raise ActorError(f'The learner at {options.address.text}: {e}') from e
    finally:
      outgoing.put(None)
      channel.close()

  def _open(
    self, channel: grpc.Channel, outgoing: queue.SimpleQueue[bytes | None]
  ) -> Any:
    """Returns the call, whose messages to the learner are taken from a queue.

    Its iterator ends at None.
    """
    self._connect(channel)
    call = channel.stream_stream(_METHOD)(
      iter(outgoing.get, None),
      metadata=addresses.metadata(self._options.security),
    )
    with self._lock:
      self._call = call
    if self._stop.is_set():
      call.cancel()
    return call

  def _connect(self, channel: grpc.Channel) -> None:
    """Waits until a channel is connected, or cannot be.

    A stream that is begun while its channel connects may hang for ever where
    that fails.
    """
    states: queue.SimpleQueue[grpc.ChannelConnectivity | None]
    states = queue.SimpleQueue()
    with self._lock:
      self._states = states
    if self._stop.is_set():
      states.put(None)
    channel.subscribe(states.put, try_to_connect=True)
    try:
      while (state := states.get(timeout=_ATTEMPT)) in _CONNECTING:
        pass
    except queue.Empty:
      state = None
    finally:
      channel.unsubscribe(states.put)
    if state != grpc.ChannelConnectivity.READY:
      raise _Lost(f'nobody answers at {self._options.address.text}.')

  def _talk(self, call: Any, outgoing: queue.SimpleQueue[bytes | None]) -> bool:
    options = self._options
    hello = handshake.Hello(options.num_envs, options.name)
    outgoing.put(handshake.pack_hello(hello))
    message = _next(call)
    welcome = handshake.unpack_welcome(message)
    self._wait = 0.0
    stream = self._make_stream(welcome, outgoing, call)
    try:
      env_id = welcome.env_id
      self._say(
        f'Run {welcome.run_id}: {len(env_id)} environments of '
        f'{stream.spec.name} for {options.address.text}.'
      )
      return _step(stream, env_id, call, outgoing)
    finally:
      self._found = time.monotonic()
      stream.close()

  def _make_stream(
    self,
    welcome: handshake.Welcome,
    outgoing: queue.SimpleQueue[bytes | None],
    call: Any,
  ) -> local_stream.LocalStream:
    """Makes the environments, or says on both sides why it cannot."""
    options = self._options
    config = handshake.env_config(
      welcome, options.num_threads, options.affinity
    )
    num_envs = options.num_envs
    try:
      if welcome.env_id.shape != (num_envs,):
        raise ValueError(f'The learner gave ids for other than {num_envs}.')
      handshake.check_specs(welcome.spec, factory.make_spec(config))
      return factory.make_stream(
        config, welcome.seed, num_envs, num_envs, options.num_groups
      )
    except (ValueError, ImportError) as e:
      reason = f'{options.name} cannot serve this learner: {e}'
      outgoing.put(wire.pack_json(wire.Kind.REFUSAL, {'reason': reason}))
      outgoing.put(None)
      # The learner ends the stream once it has read this.
      for _ in call:
        pass
      raise ActorError(reason) from e

  def _translate(self, error: grpc.RpcError) -> Exception:
    """Returns what an RPC's end means for the group."""
    address = self._options.address.text
    if error.code() == _Code.UNIMPLEMENTED:
      return ActorError(f'At {address} is no learner of seedrl-jax.')
    if error.code() in _FATAL:
      return ActorError(f'The learner at {address}: {error.details()}')
    return _Lost(f'{address}: {error.code().name}: {error.details()}')


def _next(call: Any) -> wire.Message:
  try:
    return wire.parse(next(call))
  except StopIteration:
    raise _Lost('it ended the stream.') from None


def _step(
  stream: local_stream.LocalStream,
  env_id: np.ndarray,
  call: Iterator[bytes],
  outgoing: queue.SimpleQueue[bytes | None],
) -> bool:
  """Steps until the learner says that the training has ended."""
  layout = wire.Layout(stream.spec.observation)
  sequence = 0
  while True:
    output = stream.recv()
    outgoing.put(
      layout.pack_steps(
        output._replace(env_id=env_id[output.env_id]),
        _columns(stream.take_episodes(), env_id),
        sequence,
      )
    )
    message = _next(call)
    if message.kind == wire.Kind.END:
      return True
    rows = len(output.env_id)
    stream.send(wire.unpack_actions(message, rows, sequence), output.env_id)
    sequence += 1


def _columns(
  episodes: list[base.Episode], env_id: np.ndarray
) -> statistics.EndedEpisodes:
  """Returns finished episodes as columns, under the learner's ids."""
  columns = [np.array(c) for c in zip(*episodes, strict=True)]
  if not columns:
    return _NO_EPISODES
  return statistics.EndedEpisodes(env_id[columns[0]], *columns[1:])


_NO_EPISODES = statistics.EndedEpisodes(
  *(np.zeros(0) for _ in statistics.EndedEpisodes._fields)
)
