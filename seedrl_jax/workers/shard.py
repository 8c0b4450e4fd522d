"""One shard of a parameter server: a process that has a slice of all vectors.

As in GORILA (Nair et al. 2015, arXiv 1507.04296), each shard applies the
gradients of its slice, and updates its slice of the target network at multiples
of its own updates. Its slice, the workers' requests and its replies are in
memory that the first worker keeps, so a shard that is started again goes on
from there.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import ml_collections
import numpy as np
import optax

from seedrl_jax.agents import optimizers
from seedrl_jax.runtime import process
from seedrl_jax.workers import children, flat, links, memory, shared


def make_memory(
  optimizer: optax.GradientTransformation,
  num_workers: int,
  size: int,
  target_size: int,
  fd: int | None = None,
) -> memory.Memory:
  """Returns memory for the workers' requests, replies and the shard's slice.

  The slice is version, parameters, target and optimiser's leaves. A shard
  answers a request whose `number` is not that of the worker's reply. It applies
  the gradient if there is one, and replies with parameters. A request's version
  is that of the worker's last reply; a reply's version is the number of updates
  in its parameters. `error` is why a request was rejected. A gradient `is_lost`
  if the shard died before its reply.
  """
  request = [
    ('number', 'i8'),
    ('version', 'i8'),
    ('learning_rate', 'f4'),
    ('has_gradient', '?'),
    ('gradient', 'f4', (size,)),
  ]
  reply = [
    ('number', 'i8'),
    ('version', 'i8'),
    ('cpu_seconds', 'f8'),
    ('error', 'S110'),
    ('is_applied', '?'),
    ('is_lost', '?'),
    ('params', 'f4', (size,)),
  ]
  # Aligned, so that a number changes at once.
  messages = [
    (np.dtype(fields, align=True), (num_workers,))
    for fields in (request, reply)
  ]
  leaves = flat.OptimizerStep(optimizer, size).shapes
  layout = [(leaf.dtype, leaf.shape) for leaf in leaves]
  vectors = [('f4', (size,)), ('f4', (target_size,))]
  return memory.Memory([*messages, ('i8', ()), *vectors, *layout], fd)


class Shard:
  """A slice of the parameters."""

  def __init__(
    self,
    arrays: Sequence[np.ndarray],
    optimizer: optax.GradientTransformation,
    event: links.ProcessEvent,
    worker_events: Sequence[links.ProcessEvent],
    target_update_period: int = 0,
    target_update_rate: float = 1.0,
    max_staleness: int = 0,
  ):
    """Trains the arrays of `make_memory` in place.

    A worker sets `event` after a request; the shard sets the worker's after
    its reply.
    """
    self._requests, self._replies, *arrays = arrays
    self._version, self._params, self._target, *self._optimizer = arrays
    self._event, self._worker_events = event, worker_events
    self._max_staleness = max_staleness
    self._period, self._rate = target_update_period, target_update_rate
    self._step = flat.OptimizerStep(optimizer, self._params.size)
    # Compiles it.
    self._step(self._params, self._optimizer, np.zeros_like(self._params), 0.0)
    # Their gradients may or may not be in the parameters.
    self._lost = self._pending()

  def _pending(self) -> set[int]:
    """Returns the workers whose requests have no reply yet."""
    is_new = self._requests['number'] != self._replies['number']
    return {*np.flatnonzero(is_new).tolist()}

  def serve(self) -> None:
    """Answers all new requests, then waits a moment for the next."""
    for worker in self._pending():
      request, reply = self._requests[worker], self._replies[worker]
      number = request['number']
      reply['is_lost'] = worker in self._lost
      self._lost.discard(worker)
      self._answer(request, reply)
      reply['number'] = number
      self._worker_events[worker].set()
    self._event.wait()

  def _answer(self, request: np.void, reply: np.void) -> None:
    reply['is_applied'], reply['error'] = False, b''
    age = int(self._version - request['version'])
    is_stale = self._max_staleness and age > self._max_staleness
    if age < 0:
      reply['error'] = (
        f'version {request["version"]} is later than {self._version}'
      )
    elif request['has_gradient'] and not (reply['is_lost'] or is_stale):
      self._apply(request, reply)
    reply['version'], reply['params'] = self._version, self._params
    reply['cpu_seconds'] = time.process_time()

  def _apply(self, request: np.void, reply: np.void) -> None:
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
  # Accelerators are the workers'.
  jax.config.update('jax_platforms', 'cpu')
  optimizer = optimizers.make(config)
  settings, fds, index = config.asynchronous, info['fds'], info['shard']
  count, fd = settings.workers, fds[f'memory-{index}']
  shard = Shard(
    make_memory(optimizer, count, **info['sizes'], fd=fd).arrays,
    optimizer,
    links.ProcessEvent(fds[f'event-{index}']),
    [links.ProcessEvent(fds[f'worker-event-{i}']) for i in range(count)],
    **info['target'],
    max_staleness=settings.max_staleness,
  )
  children.set_ready(info)
  while True:
    shard.serve()
