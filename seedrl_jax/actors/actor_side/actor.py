"""An actor: groups of environments that a remote learner acts for."""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import grpc
import numpy as np

from seedrl_jax.actors import handshake, local_messages, wire
from seedrl_jax.actors.actor_side.connection import (
  ActorError,
  IncompatibleLearner,
  LearnerConnection,
  PeerLost,
)
from seedrl_jax.envs import base, factory, trust
from seedrl_jax.net import addresses, credentials

# Seconds of the first and the longest wait between two attempts.
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0
# Seconds to look for a learner: enough to replace a machine. Not for ever, as
# an actor that is away when the training ends does not learn of it.
PATIENCE = 600.0
_Code = grpc.StatusCode
# Another attempt would not help.
_FATAL = {
  _Code.FAILED_PRECONDITION,
  _Code.INVALID_ARGUMENT,
  _Code.PERMISSION_DENIED,
  _Code.UNAUTHENTICATED,
  _Code.UNIMPLEMENTED,
}


# Makes what acts for a group's environments during one connection to a learner,
# as `local_inference.LocalInference`, which needs JAX; its `close` interrupts
# the stream.
MakeLocalActor = Callable[[handshake.Welcome, base.LocalStream], Any]


class GroupOptions(NamedTuple):
  """Options of a group."""

  address: addresses.Address  # of the learner
  security: credentials.Security
  num_envs: int
  # Environments that step at a time, so that others do meanwhile; 0: all. Fewer
  # only if the group acts itself.
  batch_size: int = 0
  # Of the environments; 0: all cores for each group, as groups alternate.
  num_threads: int = 0
  affinity: int = -1  # first processor for these threads; -1: any
  patience: float = PATIENCE  # seconds to look for a learner; 0: for ever
  name: str = 'actor'  # for messages
  allowed: Collection[str] = ()  # flags that allow foreign code; see `trust`
  task: str = ''  # of all environments, if the learner has several; '': each


class EnvGroup:
  """Environments that share a stream to the learner."""

  def __init__(
    self,
    options: GroupOptions,
    say: Callable[[str], None] = print,
    make_local_actor: MakeLocalActor | None = None,
  ):
    """Raises `ValueError` if the connection would not be safe.

    Without `make_local_actor` the learner acts.
    """
    addresses.check_calling(options.address, options.security)
    self._options = options
    self._say = say
    self._make_local_actor = make_local_actor
    self._stop = threading.Event()
    self._lock = threading.Lock()
    # What `stop` wakes.
    self._connection: LearnerConnection | None = None
    self._stream: base.LocalStream | None = None
    # When a learner was last there, or first looked for.
    self._last_contact = time.monotonic()
    self._wait = 0.0
    self._reason = ''  # why it looks for the learner, as last printed

  def run(self) -> bool:
    """Serves until `stop`, or returns True when the training has ended.

    Raises ActorError if learner and actor do not fit, or none was found in
    time, and EnvironmentFailed if an environment fails, or hangs after `stop`.
    """
    while not self._stop.is_set():
      try:
        if self._serve():
          return True
      except PeerLost as e:
        self._back_off(e)
      except base.StreamClosed:
        # By `stop`.
        break
    return False

  def stop(self) -> None:
    """Ends `run`; any thread may call it."""
    self._stop.set()
    with self._lock:
      if self._connection is not None:
        self._connection.cancel()
      if self._stream is not None:
        self._stream.interrupt()

  def _back_off(self, reason: PeerLost) -> None:
    """Waits before the next attempt, longer each time, up to `patience`."""
    if self._stop.is_set():
      return
    patience = self._options.patience
    if patience and time.monotonic() - self._last_contact >= patience:
      raise ActorError(
        f'No learner at {self._options.address.text} for {patience:g} s '
        f'({str(reason).rstrip(".")}); if its training has not ended, start '
        'the actor again, or let it look for ever with --patience=0.'
      )
    if str(reason) != self._reason:
      self._reason = str(reason)
      self._say(f'Looking for the learner: {reason}')
    self._wait = min(max(2 * self._wait, _FIRST_WAIT), _LONGEST_WAIT)
    # At random, so that actors do not all come back at once.
    self._stop.wait(self._wait * random.uniform(0.5, 1.0))

  def _serve(self) -> bool:
    """Serves one learner; returns whether its training has ended."""
    options = self._options
    connection = LearnerConnection(options.address, options.security)
    with self._lock:
      self._connection = connection
    try:
      if self._stop.is_set():
        return False
      connection.open()
      self._join(connection)
      return True
    except grpc.RpcError as e:
      # The error is the stream itself; a traceback would keep it alive.
      failure = self._translate(e.with_traceback(None), connection.advice)
    except wire.WireError as e:
      raise ActorError(f'The learner at {options.address.text}: {e}') from e
    finally:
      connection.close()
    raise failure

  def _join(self, connection: LearnerConnection) -> None:
    options = self._options
    acts_itself = self._make_local_actor is not None
    hello = handshake.Hello(options.num_envs, options.name, acts_itself)
    connection.send(handshake.pack_hello(hello))
    message = connection.receive()
    if message is None:
      return
    welcome = handshake.unpack_welcome(message)
    self._wait, self._reason = 0.0, ''
    try:
      stream = self._make_stream(welcome)
      with self._lock:
        self._stream = stream
        if self._stop.is_set():
          stream.interrupt()
      try:
        self._say(
          f'Run {welcome.run_id!a}: {stream.num_envs} environments of '
          f'{stream.spec.name} for {options.address.text}.'
        )
        if self._make_local_actor is None:
          _step_environments(stream, connection)
        else:
          acting = self._make_local_actor(welcome, stream)
          with contextlib.closing(acting):
            _follow_learner(acting, connection)
      finally:
        self._last_contact = time.monotonic()
        stream.close()
    except IncompatibleLearner as e:
      raise ActorError(f'{options.name} cannot serve this learner: {e}') from e

  def _make_stream(self, welcome: handshake.Welcome) -> base.LocalStream:
    """Makes the environments, or raises `IncompatibleLearner`."""
    options = self._options
    num_envs = options.num_envs
    try:
      whole = handshake.requested_config(
        welcome, options.num_threads, options.affinity
      )
      # Before code that the learner names is imported.
      trust.check(whole.to_dict(), options.allowed, 'the learner')
      config = whole.env
      handshake.check_spec(welcome, factory.make_spec(config))
      batch_size = options.batch_size or num_envs
      return factory.make_stream(
        config,
        welcome.seed,
        num_envs,
        batch_size,
        tasks=factory.equal_tasks(config, options.task, num_envs),
      )
    except (ValueError, ImportError, RecursionError) as e:
      raise IncompatibleLearner(str(e)) from e

  def _translate(self, error: grpc.RpcError, advice: str) -> Exception:
    address, code = self._options.address.text, error.code()
    if code == _Code.UNIMPLEMENTED:
      return ActorError(f'At {address} is no learner of seedrl-jax.')
    if code in _FATAL:
      return ActorError(f'The learner at {address}: {error.details()}')
    if code == _Code.RESOURCE_EXHAUSTED:
      # There is a learner, but it is full.
      self._last_contact = time.monotonic()
    reason = f'{code.name}: {error.details()}'.rstrip('.')
    return PeerLost(f'{address}: {reason}{advice}.')


def _step_environments(
  stream: base.LocalStream, connection: LearnerConnection
) -> None:
  """Sends steps and applies the learner's actions until the training ends."""
  codec = wire.StreamCodec(stream.spec)
  env_id = np.arange(stream.num_envs, dtype=np.int32)
  while True:
    output = stream.recv()
    assert np.array_equal(output.env_id, env_id), 'all environments, in order'
    episodes = np.array(stream.take_episodes(), base.EPISODE)
    connection.send(codec.pack_steps(output, episodes))
    message = connection.receive()
    if message is None:
      return
    action = codec.unpack_actions(message, len(env_id))
    stream.send(action, env_id)


def _follow_learner(local_actor: Any, connection: LearnerConnection) -> None:
  """Sends reports and fetches parameters until the training ends."""
  local_actor.start()
  while True:
    connection.send(local_messages.pack_report(local_actor.report()))
    message = connection.receive()
    if message is None:
      return
    newer = local_messages.unpack_parameters(message, local_actor.parameters)
    if newer is not None:
      local_actor.take(*newer)
    local_actor.wait()
