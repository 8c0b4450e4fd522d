"""Synchronous workers: each update takes the mean of one gradient of each.

For comparison with asynchronous ones, on the same memory and processes.
"""

import os
import signal
import socket
from collections.abc import Callable, Mapping

import numpy as np

from seedrl_jax.hosts import coordinator
from seedrl_jax.workers import board as board_lib
from seedrl_jax.workers import flat, memory, shared


class SynchronousMemory(shared.SharedMemory):
  """Shared memory that the first worker updates, for all of them.

  The others send a byte when their gradients are there, and get one back when
  the parameters are new.
  """

  def __init__(
    self,
    trainer: flat.FlatTrainer,
    board: board_lib.Board,
    links: Callable[[], Mapping[int, socket.socket]],
    fds: Mapping[str, int],
    count: int,
    patience: float,
  ):
    """Makes the memory, or opens that of `fds`.

    Args:
      trainer, board, fds: see `SharedMemory`.
      links: returns those of the first worker to the others that have started,
        by index; of another one, its link to the first.
      count: number of workers.
      patience: seconds to wait for another worker's gradient.
    """
    super().__init__(trainer, board, fds)
    self._gradient_memory = memory.Memory(
      [('f4', (count, trainer.size))], fds.get('gradients')
    )
    (self._gradients,) = self._gradient_memory.arrays
    self._links, self._patience = links, patience

  @property
  def fds(self) -> dict[str, int]:
    return super().fds | {'gradients': self._gradient_memory.fd}

  def apply(
    self, gradient: np.ndarray, version: int, learning_rate: float
  ) -> None:
    index = self._board.index
    self._gradients[index] = gradient
    if index:
      self._wait_for_first(self._links()[0])
      return
    # A link that has ended is of a worker that has died: go on without.
    present = {i: x for i, x in self._links().items() if self._receive(i, x)}
    mean = self._gradients[[index, *present]].mean(axis=0)
    super().apply(mean, version, learning_rate)
    for link in present.values():
      _send(link)

  def _wait_for_first(self, link: socket.socket) -> None:
    if not (_send(link) and self._receive(0, link)):
      # The first worker has ended the run.
      os.kill(os.getpid(), signal.SIGTERM)

  def _receive(self, index: int, link: socket.socket) -> bool:
    """Returns whether a worker has answered; False if it has ended.

    Raises:
      WorkerFailed: if it neither answers nor ends.
    """
    link.settimeout(self._patience)
    try:
      return bool(link.recv(1))
    except TimeoutError:
      raise coordinator.WorkerFailed(
        f'Worker {index} has not answered for {self._patience:g} s; give it '
        'longer with --config.asynchronous.patience, or start the run again to '
        'resume from its last checkpoint.'
      ) from None
    except OSError:
      return False


def _send(link: socket.socket) -> bool:
  """Returns whether there is somebody to send to."""
  try:
    return bool(link.send(b'.'))
  except OSError:
    return False
