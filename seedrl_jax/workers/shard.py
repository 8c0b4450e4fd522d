"""One shard of a parameter server: a process that has a slice of all vectors.

As in GORILA (Nair et al. 2015, arXiv 1507.04296), each shard applies the
gradients of its slice, and updates its slice of the target network at multiples
of its own updates. Workers send fixed-size records over Unix sockets.
"""

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import jax
import ml_collections
import numpy as np
import optax

from seedrl_jax.agents import optimizers
from seedrl_jax.runtime import process
from seedrl_jax.workers import flat, links, memory, shared

# Kinds of requests, which are all answered with the parameters. SAVE first
# makes a snapshot, and APPLY first applies the gradient.
READ, SAVE, APPLY = range(3)


def make_messages(size: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns an empty request and an empty reply for `size` parameters.

  A request's version is that of the worker's last reply; a reply's version is
  the number of updates in its parameters. If `has_target`, those of the target
  network follow. `error` is why a request was rejected.
  """
  request = [('kind', 'i4'), ('learning_rate', 'f4'), ('version', 'i8')]
  reply = [('version', 'i8'), ('cpu_seconds', 'f8'), ('error', 'S110')]
  flags = [('is_applied', '?'), ('has_target', '?')]
  return (
    np.zeros((), [*request, ('gradient', 'f4', (size,))]),
    np.zeros((), [*reply, *flags, ('params', 'f4', (size,))]),
  )


def make_snapshot(
  optimizer: optax.GradientTransformation,
  size: int,
  target_size: int,
  fd: int | None = None,
) -> memory.Snapshot:
  """Returns memory for parameters, target and the optimiser's leaves."""
  leaves = flat.OptimizerStep(optimizer, size).shapes
  layout = [(leaf.dtype, leaf.shape) for leaf in leaves]
  return memory.Snapshot([('f4', (size,)), ('f4', (target_size,)), *layout], fd)


class Shard:
  """A slice of the parameters; all that changes it holds `lock`."""

  def __init__(
    self,
    snapshot: memory.Snapshot,
    optimizer: optax.GradientTransformation,
    target_update_period: int = 0,
    target_update_rate: float = 1.0,
    max_staleness: int = 0,
  ):
    """Begins with the snapshot, which `save` replaces."""
    self._arrays, self._version = snapshot.load()
    self._params, self._target, *self._optimizer = self._arrays
    self._snapshot, self._max_staleness = snapshot, max_staleness
    self._period, self._rate = target_update_period, target_update_rate
    self._num_targets = 0
    self._step = flat.OptimizerStep(optimizer, self._params.size)
    # Compiles it.
    self._step(self._params, self._optimizer, np.zeros_like(self._params), 0.0)
    self.lock = threading.Lock()

  def save(self) -> None:
    self._snapshot.save(self._arrays, self._version)

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
    target, num_targets = np.empty_like(self._target), -1
    with connection, contextlib.suppress(ConnectionError):
      while True:
        links.transfer(connection.recv_into, request)
        with self.lock:
          self._answer(request, reply, is_first=num_targets < 0)
          reply['has_target'] = num_targets != self._num_targets
          if reply['has_target']:
            target[:], num_targets = self._target, self._num_targets
        links.transfer(connection.send, reply)
        if reply['has_target']:
          links.transfer(connection.send, target)

  def _answer(
    self, request: np.ndarray, reply: np.ndarray, is_first: bool
  ) -> None:
    version, before = int(request['version']), self._version
    reply['is_applied'], reply['error'] = False, b''
    if version > before and not is_first:
      reply['error'] = f'version {version} is later than {before}'
      return
    # A shard that was started again has forgotten its last updates. It skips
    # their numbers, as workers' versions must not go back.
    self._version = max(before, version)
    age = self._version - version
    is_stale = self._max_staleness and age > self._max_staleness
    if request['kind'] == APPLY and not is_stale:
      try:
        self._apply(request['gradient'], float(request['learning_rate']))
        reply['is_applied'] = True
      except flat.NonFiniteStep:
        reply['error'] = 'the gradient step is not finite'
    # The version may pass several multiples at once.
    if self._period and self._version // self._period > before // self._period:
      shared.update_target(self._rate, self._params, self._target)
      self._num_targets += 1
    if request['kind'] == SAVE:
      self.save()
    reply['version'], reply['params'] = self._version, self._params
    reply['cpu_seconds'] = time.process_time()

  def _apply(self, gradient: np.ndarray, learning_rate: float) -> None:
    flat.step_in_place(
      self._step, self._params, self._optimizer, gradient, learning_rate
    )
    self._version += 1


def main(config: ml_collections.ConfigDict, info: Mapping[str, Any]) -> None:
  """Serves until a signal, which raises `SystemExit` after a last save.

  `info` is from `server.ServerParameters`, in this process's parent.
  """
  # Not with 0: only its parent's signal ends a shard.
  process.on_stop(lambda number, _: sys.exit(128 + number))
  # An error in a thread ends the process, too.
  threading.excepthook = _end
  # Accelerators are the workers'.
  jax.config.update('jax_platforms', 'cpu')
  settings, optimizer = config.asynchronous, optimizers.make(config)
  index, size, target_size = info['shard'], info['size'], info['target_size']
  shard = Shard(
    make_snapshot(optimizer, size, target_size, info[f'snapshot-{index}']),
    optimizer,
    info['target_update_period'],
    info['target_update_rate'],
    settings.max_staleness,
  )
  listener = socket.socket(fileno=info[f'listener-{index}'])
  link = socket.socket(fileno=info['link'])
  # It is ready.
  link.send(b'.')
  next_save = time.monotonic() + settings.snapshot_seconds
  try:
    while True:
      shard.accept(listener)
      # Also at other times, so that a shard whose lock is stuck is found.
      with shard.lock:
        if time.monotonic() >= next_save:
          shard.save()
          next_save = time.monotonic() + settings.snapshot_seconds
  finally:
    # Never released: no gradient is applied after the save.
    shard.lock.acquire()
    shard.save()


def _end(args: threading.ExceptHookArgs) -> None:
  threading.__excepthook__(args)
  os._exit(1)
