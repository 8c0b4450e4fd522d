"""One shard of a parameter server: a process that has a slice of all vectors.

As in GORILA (Nair et al. 2015, arXiv 1507.04296), each shard applies the
gradients of its slice, and updates its slice of the target network at multiples
of its own updates. One thread does all of it, so no update is lost.
"""

import contextlib
import pathlib
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from typing import Any

import grpc
import jax
import ml_collections
import numpy as np
import optax

from seedrl_jax.actors import addresses, credentials
from seedrl_jax.agents import sgd
from seedrl_jax.runtime import file_io, process
from seedrl_jax.workers import flat, shared, wire

FLAG = '--config.asynchronous.addresses'
# Seconds for the calls that are under way at the end.
_END_SECONDS = 5.0


class Shard:
  """A slice of the parameters, and what happens to it; not for two threads."""

  def __init__(
    self,
    file: pathlib.Path,
    optimizer: optax.GradientTransformation,
    target_update_period: int = 0,
    target_update_rate: float = 1.0,
    max_staleness: int = 0,
  ):
    """Begins with the `wire.State` in `file`, which `save` writes again."""
    state = wire.State.unpack(file.read_bytes())
    self._params, self._target, self._optimizer = state.vectors
    self._version = self._saved_version = state.version
    # A process that is started again must not use those of the one before, or
    # workers would keep targets that are gone.
    self._epoch = secrets.randbits(62)
    self._file, self._max_staleness = file, max_staleness
    self._period, self._rate = target_update_period, target_update_rate
    self._step = flat.OptimizerStep(optimizer, self._params.size)
    # Compiles it.
    self._step(self._params, self._optimizer, np.zeros_like(self._params), 0.0)

  @property
  def max_bytes(self) -> int:
    """Length of the longest request."""
    return wire.Request.num_bytes(self._params.size)

  def exchange(self, data: bytes) -> bytes:
    """Answers a `wire.Request` with a `wire.Reply`.

    Raises:
      ValueError: if the request is malformed, of a version that this process
        never had, or its gradient step is not finite.
    """
    asked = wire.Request.unpack(data, self._params.size)
    before = self._version
    if asked.epoch == self._epoch and asked.version > before:
      raise ValueError(f'Version {asked.version} is later than {before}.')
    # After a new start from its file, a shard has forgotten its last updates.
    # Their numbers are skipped, as workers' versions must not go back.
    self._version = max(before, asked.version)
    is_kept = self._apply(asked)
    self._update_target(before)
    return wire.Reply(
      version=self._version,
      epoch=self._epoch,
      cpu_seconds=time.process_time(),
      kept=is_kept,
      params=self._params,
      target=None if asked.epoch == self._epoch else self._target,
    ).pack()

  def _apply(self, asked: wire.Request) -> bool:
    """Applies a gradient if there is one, and it is not too old."""
    most = self._max_staleness
    is_stale = most and self._version - asked.version > most
    if asked.gradient is None or is_stale:
      return False
    flat.step_in_place(
      self._step,
      self._params,
      self._optimizer,
      asked.gradient,
      asked.learning_rate,
    )
    self._version += 1
    return True

  def _update_target(self, before: int) -> None:
    """Updates the target if `version` has passed a multiple of the period."""
    period = self._period
    if period and self._version // period > before // period:
      shared.update_target(self._rate, self._params, self._target)
      self._epoch += 1

  def state(self, data: bytes = b'') -> bytes:
    """Returns a `wire.State`."""
    del data
    vectors = flat.Vectors(self._params, self._target, self._optimizer)
    return wire.State(vectors, self._version).pack()

  def save(self) -> None:
    """Writes the file if there are updates; only warns if it cannot."""
    if self._version == self._saved_version:
      return
    try:
      file_io.write_whole(self._file, self.state())
    except file_io.NotWritten as e:
      process.say(f'{e} The next save tries again.')
      return
    self._saved_version = self._version


@contextlib.contextmanager
def serving(
  shard: Shard, address: addresses.Address, security: credentials.Security
) -> Iterator[futures.Executor]:
  """Answers calls, one at a time; yields the executor of their thread.

  Raises:
    ValueError: if it cannot listen; names the flag.
  """
  answers = {wire.EXCHANGE: shard.exchange, wire.STATE: shard.state}
  handlers = {k: _handler(f, security) for k, f in answers.items()}
  with futures.ThreadPoolExecutor(1, 'shard') as executor:
    server = grpc.server(
      executor,
      options=(
        ('grpc.max_receive_message_length', shard.max_bytes),
        ('grpc.max_send_message_length', -1),
        # Two runs would share a port.
        ('grpc.so_reuseport', 0),
      ),
    )
    server.add_generic_rpc_handlers([
      grpc.method_handlers_generic_handler(wire.SERVICE, handlers)
    ])
    with addresses.listening(server, address, security, FLAG):
      server.start()
      try:
        yield executor
      finally:
        server.stop(_END_SECONDS).wait()


def _handler(
  answer: Callable[[bytes], bytes], security: credentials.Security
) -> grpc.RpcMethodHandler:
  def handle(data: bytes, context: grpc.ServicerContext) -> bytes:
    if not security.admits(context.invocation_metadata()):
      context.abort(
        grpc.StatusCode.UNAUTHENTICATED, 'the token is not that of the run'
      )
    try:
      return answer(data)
    except ValueError as e:
      context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(e))
      raise

  return grpc.unary_unary_rpc_method_handler(handle)


def main(config: ml_collections.ConfigDict, told: Mapping[str, Any]) -> None:
  """Serves until a signal, which raises `SystemExit` after a last save.

  `told` is from `owned_server.OwnedServer`, this process's parent.

  Raises:
    ValueError: if it cannot listen; names the flag.
  """
  process.on_stop(_end)
  # Accelerators are the workers'.
  jax.config.update('jax_platforms', 'cpu')
  own = config.asynchronous
  shard = Shard(
    pathlib.Path(told['file']),
    sgd.make_optimizer(config),
    told['target_update_period'],
    told['target_update_rate'],
    own.max_staleness,
  )
  address = addresses.parse(FLAG, told['address'])
  security = credentials.learner_security(config.actors)
  try:
    with serving(shard, address, security) as executor:
      with socket.socket(fileno=told['link']) as link:
        # It is ready.
        link.send(b'.')
      while True:
        time.sleep(own.snapshot_seconds)
        executor.submit(shard.save).result()
  finally:
    shard.save()


def _end(number: int, frame: Any) -> None:
  """Ends the process, not with 0: only its parent's signal ends a shard."""
  del frame
  # A second signal must not interrupt the last save.
  signal.signal(number, signal.SIG_IGN)
  sys.exit(128 + number)
