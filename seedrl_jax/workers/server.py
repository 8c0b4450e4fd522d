"""A parameter server of several shards, as workers use it."""

import contextlib
import socket
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
    """Makes the shards' sockets and memory, or opens those of `fds`.

    Args:
      trainer, board, fds: see `shared.SharedMemory`.
      config: the run's configuration.
      check: called while waiting; raises `WorkerFailed` if the run must end.
      start: starts a shard's process with settings and file descriptors.
    """
    self._board, self._trainer, self._start = board, trainer.trainer, start
    self._clip_norm = config.optimizer.clip_norm
    parts = split(np.empty(trainer.size), config.asynchronous.shards)
    self._shards = [
      _Connection(index, part.size, trainer, fds, check)
      for index, part in enumerate(parts)
    ]
    self.fds = {
      f'{name}-{index}': fd
      for index, shard in enumerate(self._shards)
      for name, fd in shard.fds.items()
    }
    self._is_read = True

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
        'sizes': [parts[0].size, parts[1].size],
        'target_update': [
          trainer.target_update_period,
          trainer.target_update_rate,
        ],
        **shard.fds,
      }
      self._start(index, info, [*shard.fds.values()])

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
    is_complete = self._exchange(has_gradient=True)
    self._is_read = False
    replies = [shard.reply for shard in self._shards]
    if not is_complete:
      self._board.row.lost += 1
    elif all(reply['is_applied'] for reply in replies):
      self._board.count(int(replies[0]['version']) - 1 - version)
    else:
      self._board.row.stale += 1

  def _exchange(self, *, has_gradient: bool) -> bool:
    """Takes all shards' replies; returns whether all got the request."""
    for shard in self._shards:
      shard.send(has_gradient)
    have_got = [shard.receive() for shard in self._shards]
    row = self._board.row
    row.version = self._shards[0].reply['version']
    row.shards_cpu = sum(shard.reply['cpu_seconds'] for shard in self._shards)
    for shard in self._shards:
      row['bytes'] += shard.request.nbytes + shard.reply.nbytes
    return all(have_got)

  def vectors(self) -> flat.Vectors:
    """Returns a copy of all, which the shards may change meanwhile."""
    states = [shard.vectors for shard in self._shards]
    params, target, *optimizer = (
      np.concatenate(arrays) if arrays[0].ndim else arrays[0].copy()
      for arrays in zip(*states, strict=True)
    )
    return flat.Vectors(params, target, optimizer)


class _Connection:
  """Asks one shard.

  Attributes:
    request, reply: the last messages.
    version, vectors, target: the shard's, in memory that it shares; vectors are
      parameters, target and optimiser's leaves.
    fds: file descriptors of the memory and of the socket that listens.
  """

  def __init__(
    self,
    index: int,
    size: int,
    trainer: flat.FlatTrainer,
    fds: Mapping[str, int],
    check: Callable[[], None],
  ):
    self._title, self._check = f'Shard {index} of the parameter server', check
    self.request, self.reply = shard_lib.make_messages(size)
    listener = fds.get(f'listener-{index}')
    memory = shard_lib.make_memory(
      trainer.trainer.optimizer,
      size,
      min(size, trainer.target_size),
      fds.get(f'memory-{index}'),
    )
    self.version, *self.vectors = memory.arrays
    _, self.target, *_ = self.vectors
    # All processes have it, so workers can connect while the shard is away.
    self._listener = socket.socket(socket.AF_UNIX, fileno=listener)
    if listener is None:
      # The kernel chooses an abstract address, which leaves no file behind.
      self._listener.bind('')
      self._listener.listen(socket.SOMAXCONN)
    self.fds = {'memory': memory.fd, 'listener': self._listener.fileno()}
    self._connect()

  def _connect(self) -> None:
    self._socket = socket.socket(socket.AF_UNIX)
    self._socket.connect(self._listener.getsockname())
    self._socket.settimeout(links.LOOK_SECONDS)

  def send(self, has_gradient: bool) -> None:
    """Sends the request; `receive` must follow."""
    self.request['has_gradient'] = has_gradient
    self.request['version'] = self.reply['version']
    # `receive` finds out, too, that the shard is gone.
    with contextlib.suppress(ConnectionError):
      links.transfer(self._socket.send, self.request, self._check)

  def receive(self) -> bool:
    """Takes the reply; returns whether the shard has got the request.

    A shard that is gone is asked again, without a gradient, when it is back.
    """
    is_complete = False
    has_got = True
    while not is_complete:
      try:
        links.transfer(self._socket.recv_into, self.reply, self._check)
        is_complete = True
      except ConnectionError:
        has_got = False
        self._socket.close()
        self._connect()
        self._check()
        self.send(has_gradient=False)
    if error := self.reply['error'].item().decode():
      raise coordinator.WorkerFailed(
        f'{self._title} rejects a request: {error}.'
      )
    return has_got
