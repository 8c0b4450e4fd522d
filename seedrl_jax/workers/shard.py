"""One shard of a parameter server: a process that has a slice of all vectors.

As in GORILA (Nair et al. 2015, arXiv 1507.04296), each shard applies the
gradients of its slice, and updates its slice of the target network at multiples
of its own updates. Workers send fixed-size records over Unix sockets. The slice
is in memory that the first worker keeps, so a shard that is started again goes
on from there.
"""

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import ml_collections
import numpy as np
import optax

from seedrl_jax.agents import optimizers
from seedrl_jax.runtime import process
from seedrl_jax.workers import flat, links, memory, shared


def make_messages(size: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns an empty request and an empty reply for `size` parameters.

  A shard applies the gradient if there is one, and replies with parameters. A
  request's version is that of the worker's last reply; a reply's version is the
  number of updates in its parameters. `error` is why a request was rejected.
  """
  request = [('has_gradient', '?'), ('learning_rate', 'f4'), ('version', 'i8')]
  reply = [('version', 'i8'), ('cpu_seconds', 'f8'), ('error', 'S110')]
  return (
    np.zeros((), [*request, ('gradient', 'f4', (size,))]),
    np.zeros((), [*reply, ('is_applied', '?'), ('params', 'f4', (size,))]),
  )


def make_memory(
  optimizer: optax.GradientTransformation,
  size: int,
  target_size: int,
  fd: int | None = None,
) -> memory.Memory:
  """Returns memory for version, parameters, target and optimiser's leaves."""
  leaves = flat.OptimizerStep(optimizer, size).shapes
  layout = [(leaf.dtype, leaf.shape) for leaf in leaves]
  vectors = [('f4', (size,)), ('f4', (target_size,))]
  return memory.Memory([('i8', ()), *vectors, *layout], fd)


class Shard:
  """A slice of the parameters; all that changes it holds `lock`."""

  def __init__(
    self,
    arrays: Sequence[np.ndarray],
    optimizer: optax.GradientTransformation,
    target_update_period: int = 0,
    target_update_rate: float = 1.0,
    max_staleness: int = 0,
  ):
    """Trains the arrays of `make_memory` in place."""
    self._version, self._params, self._target, *self._optimizer = arrays
    self._max_staleness = max_staleness
    self._period, self._rate = target_update_period, target_update_rate
    self._step = flat.OptimizerStep(optimizer, self._params.size)
    # Compiles it.
    self._step(self._params, self._optimizer, np.zeros_like(self._params), 0.0)
    self.lock = threading.Lock()

  def accept(self, listener: socket.socket) -> None:
    """Serves the next worker in a thread, if one comes soon."""
    listener.settimeout(links.LOOK_SECONDS)
    with contextlib.suppress(TimeoutError):
      connection, _ = listener.accept()
      if not links.is_same_user(connection):
        connection.close()
        return
      connection.setblocking(True)
      threading.Thread(
        target=self.serve, args=(connection,), daemon=True
      ).start()

  def serve(self, connection: socket.socket) -> None:
    """Answers one worker until it ends."""
    request, reply = make_messages(self._params.size)
    with connection, contextlib.suppress(ConnectionError):
      while True:
        links.transfer(connection.recv_into, request)
        with self.lock:
          self._answer(request, reply)
        links.transfer(connection.send, reply)

  def _answer(self, request: np.ndarray, reply: np.ndarray) -> None:
    reply['is_applied'], reply['error'] = False, b''
    age = int(self._version - request['version'])
    is_stale = self._max_staleness and age > self._max_staleness
    if age < 0:
      reply['error'] = (
        f'version {request["version"]} is later than {self._version}'
      )
    elif request['has_gradient'] and not is_stale:
      self._apply(request, reply)
    reply['version'], reply['params'] = self._version, self._params
    reply['cpu_seconds'] = time.process_time()

  def _apply(self, request: np.ndarray, reply: np.ndarray) -> None:
    gradient, rate = request['gradient'], float(request['learning_rate'])
    arrays = self._params, self._optimizer
    try:
      flat.step_in_place(self._step, *arrays, gradient, rate)
    except flat.NonFiniteStep:
      reply['error'] = 'the gradient step is not finite'
      return
    self._version += 1
    reply['is_applied'] = True
    if self._period and self._version % self._period == 0:
      shared.update_target(self._rate, self._params, self._target)


def main(config: ml_collections.ConfigDict, info: Mapping[str, Any]) -> None:
  """Serves until a signal, which raises `SystemExit`.

  `info` is from `server.ServerParameters`, in this process's parent.
  """
  # Not with 0: only its parent's signal ends a shard.
  process.on_stop(lambda number, _: sys.exit(128 + number))
  # An error in a thread ends the process, too.
  threading.excepthook = _end
  # Accelerators are the workers'.
  jax.config.update('jax_platforms', 'cpu')
  optimizer = optimizers.make(config)
  size, target_size = info['sizes']
  period, rate = info['target_update']
  shard = Shard(
    make_memory(optimizer, size, target_size, info['memory']).arrays,
    optimizer,
    period,
    rate,
    config.asynchronous.max_staleness,
  )
  listener = socket.socket(fileno=info['listener'])
  link = socket.socket(fileno=info['link'])
  # It is ready.
  link.send(b'.')
  while True:
    shard.accept(listener)
    # A shard whose lock is stuck uses no more time, so its parent finds it.
    with shard.lock:
      pass


def _end(args: threading.ExceptHookArgs) -> None:
  threading.__excepthook__(args)
  os._exit(1)
