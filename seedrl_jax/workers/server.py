"""A parameter server of several shards, as workers use it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_collections
import numpy as np

from seedrl_jax.hosts import coordinator
from seedrl_jax.workers import board as board_lib
from seedrl_jax.workers import flat, links, shared
from seedrl_jax.workers import shard as shard_lib


def split(array: np.ndarray, count: int) -> Sequence[np.ndarray]:
  """Returns the shards' parts of a vector; all of them get a whole scalar."""
  return np.array_split(array, count) if array.ndim else [array] * count


class ServerParameters:
  """Parameters of a server; has the methods of `shared.SharedMemory`.

  A gradient goes to all shards at once, and their replies bring the parameters
  of the next `read`. Each shard counts its own versions, and judges by them how
  old a gradient is. The first shard's versions are those of the run.

  Attributes:
    fds: file descriptors to hand to other workers.
  """

  def __init__(
    self,
    trainer: flat.FlatTrainer,
    board: board_lib.Board,
    config: ml_collections.ConfigDict,
    fds: Mapping[str, int],
    check: Callable[[], None],
    start: Callable[[int, Mapping[str, Any], Sequence[int]], None],
  ):
    """Makes the shards' memory and events, or opens those of `fds`.

    Args:
      trainer, board, fds: see `shared.SharedMemory`.
      config: the run's configuration.
      check: called while waiting; raises `WorkerFailed` if the run must end.
      start: starts a shard's process with settings and file descriptors.
    """
    self._board, self._trainer, self._start = board, trainer.trainer, start
    self._clip_norm = config.optimizer.clip_norm
    self._check, self._is_read = check, True
    settings = config.asynchronous
    self._events = [
      links.ProcessEvent(fds.get(f'worker-event-{index}'))
      for index in range(settings.workers)
    ]
    parts = split(np.empty(trainer.size), settings.shards)
    self._shards = [
      _Shard(index, part.size, trainer, board, settings.workers, fds)
      for index, part in enumerate(parts)
    ]
    self.fds = {f'worker-event-{i}': x.fd for i, x in enumerate(self._events)}
    for index, shard in enumerate(self._shards):
      self.fds[f'memory-{index}'] = shard.memory.fd
      self.fds[f'event-{index}'] = shard.event.fd

  def fill(self, vectors: flat.Vectors) -> None:
    """Starts the shards with `vectors`."""
    trainer = self._trainer
    arrays = [vectors.params, vectors.target, *vectors.optimizer]
    for index, shard in enumerate(self._shards):
      parts = [split(x, len(self._shards))[index] for x in arrays]
      for held, new in zip(shard.vectors, parts, strict=True):
        held[...] = new
      shard.version[...] = self._board.version()
      info = {
        'shard': index,
        'sizes': {'size': parts[0].size, 'target_size': parts[1].size},
        'target': {
          'target_update_period': trainer.target_update_period,
          'target_update_rate': trainer.target_update_rate,
        },
        'fds': self.fds,
      }
      self._start(index, info, [*self.fds.values()])

  def read(self) -> shared.Snapshot:
    if self._is_read:
      self._exchange(has_gradient=False)
    self._is_read = True
    return shared.Snapshot(
      np.concatenate([shard.reply['params'] for shard in self._shards]),
      np.concatenate([shard.target for shard in self._shards]),
      int(self._shards[0].reply['version']),
    )

  def apply(
    self, gradient: np.ndarray, version: int, learning_rate: float
  ) -> None:
    """Applies a gradient; `version` must be that of the last `read`.

    A gradient that a lost shard may not have applied is counted, not repeated.
    """
    # No shard knows the norm over all of them.
    norm = np.linalg.norm(gradient)
    if self._clip_norm and norm > self._clip_norm:
      gradient = gradient * (self._clip_norm / norm)
    parts = split(gradient, len(self._shards))
    for shard, part in zip(self._shards, parts, strict=True):
      shard.request['gradient'] = part
      shard.request['learning_rate'] = learning_rate
    self._exchange(has_gradient=True)
    self._is_read = False
    replies = [shard.reply for shard in self._shards]
    if any(reply['is_lost'] for reply in replies):
      self._board.row.lost += 1
    elif all(reply['is_applied'] for reply in replies):
      self._board.count(int(replies[0]['version']) - 1 - version)
    else:
      self._board.row.stale += 1

  def _exchange(self, *, has_gradient: bool) -> None:
    """Asks all shards, and waits for their replies."""
    row = self._board.row
    for shard in self._shards:
      request, reply = shard.request, shard.reply
      request['has_gradient'] = has_gradient
      request['version'] = reply['version']
      request['number'] += 1
      shard.event.set()
      row['bytes'] += request.nbytes + reply.nbytes
    for index, shard in enumerate(self._shards):
      while shard.reply['number'] != shard.request['number']:
        if not self._events[self._board.index].wait():
          self._check()
      if error := shard.reply['error'].decode():
        raise coordinator.WorkerFailed(
          f'Shard {index} of the parameter server rejects a request: {error}.'
        )
    row.version = self._shards[0].reply['version']
    row.shards_cpu = sum(shard.reply['cpu_seconds'] for shard in self._shards)

  def vectors(self) -> flat.Vectors:
    """Returns a copy of all, which the shards may change meanwhile."""
    states = [shard.vectors for shard in self._shards]
    params, target, *optimizer = (
      np.concatenate(arrays) if arrays[0].ndim else arrays[0].copy()
      for arrays in zip(*states, strict=True)
    )
    return flat.Vectors(params, target, optimizer)


class _Shard:
  """What a worker shares with one shard.

  Attributes:
    memory: that of `shard.make_memory`.
    event: wakes the shard.
    request, reply: this worker's last messages.
    version, vectors, target: the shard's; vectors are parameters, target and
      optimiser's leaves.
  """

  def __init__(
    self,
    index: int,
    size: int,
    trainer: flat.FlatTrainer,
    board: board_lib.Board,
    num_workers: int,
    fds: Mapping[str, int],
  ):
    self.memory = shard_lib.make_memory(
      trainer.trainer.optimizer,
      num_workers,
      size,
      min(size, trainer.target_size),
      fds.get(f'memory-{index}'),
    )
    requests, replies, self.version, *self.vectors = self.memory.arrays
    self.request, self.reply = requests[board.index], replies[board.index]
    _, self.target, *_ = self.vectors
    self.event = links.ProcessEvent(fds.get(f'event-{index}'))
