"""Synchronous workers: each update takes the mean of one gradient of each.

For comparison with asynchronous ones, on the same memory and processes.
"""

import os
import signal
import socket
import time
from collections.abc import Callable, Mapping

import numpy as np

from seedrl_jax.hosts import coordinator
from seedrl_jax.workers import board as board_lib
from seedrl_jax.workers import flat, links, memory, shared


class SynchronousMemory(shared.SharedMemory):
  """Shared memory that the first worker updates, for all of them.

  The others send a byte when their gradients are there, and get one back when
  the parameters are new.
  """

  def __init__(
    self,
    trainer: flat.FlatTrainer,
    board: board_lib.Board,
    sockets: Callable[[], Mapping[int, socket.socket]],
    fds: Mapping[str, int],
    count: int,
    patience: float,
  ):
    """Makes the memory, or opens that of `fds`.

    Args:
      trainer, board, fds: see `SharedMemory`.
      sockets: returns those of the first worker to the others that have
        started, by index; of another one, its socket to the first.
      count: number of workers.
      patience: seconds that the first worker waits for another's gradient.
    """
    super().__init__(trainer, board, fds)
    self._gradient_memory = memory.Memory(
      [('f4', (count, trainer.size))], fds.get('gradients')
    )
    (self._gradients,) = self._gradient_memory.arrays
    self._sockets, self._patience = sockets, patience

  @property
  def fds(self) -> dict[str, int]:
    return super().fds | {'gradients': self._gradient_memory.fd}

  def apply(
    self, gradient: np.ndarray, version: int, learning_rate: float
  ) -> None:
    index = self._board.index
    self._gradients[index] = gradient
    if index:
      self._wait_for_first(self._sockets()[0])
      return
    # A socket that has ended is of a worker that has died: go on without.
    present = {i: x for i, x in self._sockets().items() if self._receive(i, x)}
    mean = self._gradients[[index, *present]].mean(axis=0)
    super().apply(mean, version, learning_rate)
    for connection in present.values():
      _send(connection)

  def _wait_for_first(self, connection: socket.socket) -> None:
    if not (_send(connection) and self._receive(0, connection)):
      # The first worker has ended the run.
      os.kill(os.getpid(), signal.SIGTERM)

  def _receive(self, index: int, connection: socket.socket) -> bool:
    """Returns whether a worker has answered; False if it has ended.

    Raises:
      WorkerFailed: if it neither answers nor ends.
    """
    deadline = time.monotonic() + self._patience

    def look() -> None:
      # Only the first worker ends the run; it may evaluate for long itself.
      if index and time.monotonic() > deadline:
        raise coordinator.WorkerFailed(
          f'Worker {index} has not answered for {self._patience:g} s; give it '
          'longer with --config.asynchronous.patience, or start the run again '
          'to resume from its last checkpoint.'
        )

    connection.settimeout(links.LOOK_SECONDS)
    try:
      links.transfer(connection.recv_into, np.empty(1, np.uint8), look)
    except OSError:
      return False
    return True


def _send(connection: socket.socket) -> bool:
  """Returns whether there is somebody to send to."""
  try:
    return bool(connection.send(b'.'))
  except OSError:
    return False
