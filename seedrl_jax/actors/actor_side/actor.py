"""An actor: groups of environments that a learner elsewhere acts for.

`launch/actor.py` runs each group in a thread. A group finds its learner, makes
the environments that it is told to, and carries their steps there and actions
back; when the learner is lost it looks for it again. Two groups or more keep a
host busy: one steps while another's actions are on their way. Needs neither
JAX nor a configuration. A group that acts itself is given a player, which has
JAX, and follows the learner with it (`following`).
"""

import random
import threading
import time
from collections.abc import Callable, Collection
from typing import NamedTuple

import grpc
import numpy as np

from seedrl_jax.actors import addresses, handshake, reports, wire
from seedrl_jax.actors.actor_side import call as call_lib
from seedrl_jax.actors.actor_side import local_actor_loop
from seedrl_jax.actors.actor_side.call import ActorError, Lost
from seedrl_jax.envs import factory, local_stream, trust

# Seconds of the first wait and the longest one between two attempts.
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0
# Seconds to look for a learner: long enough for a machine to be replaced, and
# not for ever, as an actor that comes when the training has ended, or is away
# as it ends, is not told.
PATIENCE = 600.0
_Code = grpc.StatusCode
# Trying again would not help.
_FATAL = {
  _Code.FAILED_PRECONDITION,
  _Code.INVALID_ARGUMENT,
  _Code.PERMISSION_DENIED,
  _Code.UNAUTHENTICATED,
  _Code.UNIMPLEMENTED,
}


class GroupOptions(NamedTuple):
  """What a group is asked to do.

  Attributes:
    address: of the learner.
    security: whom to trust, and the token to show.
    num_envs: environments of the group.
    batch_size: how many step at a time, so that others do meanwhile; 0: all.
      Fewer only where the group acts itself.
    num_threads: threads for the environments; 0: what the cores allow, all of
      them for each group, as groups step in turn.
    affinity: first processor for these threads; -1: any.
    patience: seconds to look for a learner that is not there; 0: for ever.
    name: of the actor, for messages.
    allowed: flags that allow what is not of this package; see `trust.check`.
  """

  address: addresses.Address
  security: addresses.Security
  num_envs: int
  batch_size: int = 0
  num_threads: int = 0
  affinity: int = -1
  patience: float = PATIENCE
  name: str = 'actor'
  allowed: Collection[str] = ()


class Group:
  """Environments that share a stream to the learner."""

  def __init__(
    self,
    options: GroupOptions,
    say: Callable[[str], None] = print,
    make_player: local_actor_loop.MakePlayer | None = None,
  ):
    """Prepares a group; `run` looks for the learner.

    Args:
      options: see `GroupOptions`.
      say: takes a line for people.
      make_player: of a group that acts itself; None: the learner acts.

    Raises:
      ValueError: where the learner must not be called like that.
    """
    addresses.check_calling(options.address, options.security)
    self._options = options
    self._say = say
    self._make_player = make_player
    self._stop = threading.Event()
    self._lock = threading.Lock()
    self._call: call_lib.Call | None = None  # what `stop` wakes
    # When a learner was last there, or looked for first.
    self._found = time.monotonic()
    self._wait = 0.0
    self._reason = ''  # why it looks for the learner, as was last said

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
      except Lost as e:
        self._back_off(e)
    return False

  def stop(self) -> None:
    """Ends `run`, from any thread."""
    self._stop.set()
    with self._lock:
      if self._call is not None:
        self._call.cancel()

  def _back_off(self, reason: Lost) -> None:
    """Waits before the next attempt, longer each time."""
    if self._stop.is_set():
      return
    self._check_patience(reason)
    if str(reason) != self._reason:
      self._reason = str(reason)
      self._say(f'Looking for the learner: {reason}')
    self._wait = min(max(2 * self._wait, _FIRST_WAIT), _LONGEST_WAIT)
    # Actors that lost their learner together do not all come back together.
    self._stop.wait(self._wait * random.uniform(0.5, 1.0))

  def _check_patience(self, reason: Lost) -> None:
    """Raises ActorError where the learner was away for too long."""
    patience = self._options.patience
    if not patience or time.monotonic() - self._found < patience:
      return
    raise ActorError(
      f'No learner at {self._options.address.text} for {patience:g} s '
      f'({str(reason).rstrip(".")}); if its training has not ended, start the '
      'actor again, or let it look for ever with --patience=0.'
    )

  def _serve(self) -> bool:
    """Serves one learner; returns whether its training has ended.

    Raises:
      Lost: where trying again may help.
      ActorError: where it does not.
    """
    options = self._options
    call = call_lib.Call(options.address, options.security)
    with self._lock:
      self._call = call
    try:
      if self._stop.is_set():
        return False
      call.open()
      return self._talk(call)
    except grpc.RpcError as e:
      # It is the stream itself, which must not outlive `close`.
      failure = self._translate(e.with_traceback(None))
    except wire.WireError as e:
      raise ActorError(f'The learner at {options.address.text}: {e}') from e
    finally:
      call.close()
    raise failure

  def _talk(self, call: call_lib.Call) -> bool:
    options = self._options
    inference = handshake.LOCAL if self._make_player else handshake.CENTRAL
    hello = handshake.Hello(options.num_envs, options.name, inference)
    call.say(handshake.pack_hello(hello))
    message = call.hear()
    if message.kind == wire.MessageKind.END:
      return True
    welcome = handshake.unpack_welcome(message)
    self._wait, self._reason = 0.0, ''
    try:
      stream = self._make_stream(welcome)
      try:
        self._say(
          f'Run {welcome.run_id}: {len(welcome.env_id)} environments of '
          f'{stream.spec.name} for {options.address.text}.'
        )
        return self._play(welcome, stream, call)
      finally:
        self._found = time.monotonic()
        stream.close()
    except local_actor_loop.Misfit as e:
      reason = f'{options.name} cannot serve this learner: {e}'
      call.refuse(reason)
      raise ActorError(reason) from e

  def _make_stream(
    self, welcome: handshake.Welcome
  ) -> local_stream.LocalStream:
    """Makes the environments.

    Raises:
      following.Misfit: where that cannot be.
    """
    options = self._options
    num_envs = options.num_envs
    try:
      # Before anything that the learner names is looked for.
      trust.check(
        handshake.requested_config(welcome), options.allowed, 'the learner'
      )
      config = handshake.env_config(
        welcome, options.num_threads, options.affinity
      )
      if welcome.env_id.shape != (num_envs,):
        raise ValueError(f'The learner gave ids for other than {num_envs}.')
      handshake.check_specs(welcome.spec, factory.make_spec(config))
      return factory.make_stream(
        config,
        welcome.seed,
        num_envs,
        options.batch_size or num_envs,
      )
    except (ValueError, ImportError) as e:
      raise local_actor_loop.Misfit(str(e)) from e

  def _play(
    self,
    welcome: handshake.Welcome,
    stream: local_stream.LocalStream,
    call: call_lib.Call,
  ) -> bool:
    """Serves until the training has ended; see `_serve`."""
    if self._make_player is None:
      return _step(stream, welcome.env_id, call)
    if welcome.local is None:
      raise wire.WireError('WELCOME does not say how to act.')
    player = self._make_player(welcome, stream)
    try:
      return local_actor_loop.follow(player, welcome.local, call)
    finally:
      player.close()

  def _translate(self, error: grpc.RpcError) -> Exception:
    """Returns what an RPC's end means for the group."""
    address = self._options.address.text
    if error.code() == _Code.UNIMPLEMENTED:
      return ActorError(f'At {address} is no learner of seedrl-jax.')
    if error.code() in _FATAL:
      return ActorError(f'The learner at {address}: {error.details()}')
    if error.code() == _Code.RESOURCE_EXHAUSTED:
      # There it is, and full.
      self._found = time.monotonic()
    return Lost(f'{address}: {error.code().name}: {error.details()}')


def _step(
  stream: local_stream.LocalStream, env_id: np.ndarray, call: call_lib.Call
) -> bool:
  """Steps until the learner says that the training has ended."""
  codec = wire.StreamCodec(stream.spec)
  sequence = 0
  while True:
    output = stream.recv()
    call.say(
      codec.pack_steps(
        output._replace(env_id=env_id[output.env_id]),
        reports.columns(stream.take_episodes(), env_id),
        sequence,
      )
    )
    message = call.hear()
    if message.kind == wire.MessageKind.END:
      return True
    rows = len(output.env_id)
    stream.send(codec.unpack_actions(message, rows, sequence), output.env_id)
    sequence += 1
