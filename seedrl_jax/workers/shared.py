"""Parameters that several workers train in shared memory.

Hogwild! (Niu et al. 2011, arXiv 1106.5730) updates shared parameters without
locks: two updates at once may lose a part of each other. A3C (Mnih et al. 2016,
arXiv 1602.01783) shares RMSProp's statistics in the same way. Synchronous
workers are for comparison.
"""

import fcntl
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from seedrl_jax.hosts import coordinator
from seedrl_jax.workers import board as board_lib
from seedrl_jax.workers import flat, links
from seedrl_jax.workers import memory as memory_lib

# Seconds between two tries to take the lock.
_LOCK_SECONDS = 5e-5


class Snapshot(NamedTuple):
  """Parameters to act and to compute a gradient with."""

  params: np.ndarray  # float32 [P]
  target: np.ndarray  # float32 [P], or [0]
  version: int  # updates that are in `params`, by all workers


class SharedMemory:
  """Parameters in the memory of this machine, updated in place.

  With `statistics`, the optimiser's state is shared; else each worker has its
  own. With `lock`, one worker applies its gradient at a time.
  """

  def __init__(
    self,
    trainer: flat.FlatTrainer,
    board: board_lib.Board,
    fds: Mapping[str, int],
    *,
    max_staleness: int = 0,
    statistics: bool = True,
    lock: bool = False,
  ):
    """Makes the memory, all zero, or opens that of another's `fds`."""
    layout = [
      ('f4', (trainer.size,)),
      ('f4', (trainer.target_size,)),
      *((shape.dtype, shape.shape) for shape in trainer.step.shapes),
    ]
    self._memory = memory_lib.Memory(layout, fds.get('parameters'))
    # File descriptors to hand to other workers.
    self.fds = {'parameters': self._memory.fd}
    self._params, self._target, *self._shared_optimizer = self._memory.arrays
    self._optimizer = self._shared_optimizer
    self._trainer, self._board = trainer, board
    self._max_staleness, self._lock = max_staleness, lock
    if fds and not statistics:
      self._optimizer = [x.copy() for x in self._shared_optimizer]

  def fill(self, vectors: flat.Vectors) -> None:
    """Sets all that training changes."""
    self._params[:], self._target[:] = vectors.params, vectors.target
    leaves = zip(self._shared_optimizer, vectors.optimizer, strict=True)
    for array, new in leaves:
      array[...] = new

  def read(self) -> Snapshot:
    """Returns a copy of the newest parameters."""
    # The version first: what is written meanwhile is newer than it says.
    version = self._board.version()
    snapshot = Snapshot(self._params.copy(), self._target.copy(), version)
    self._board.row['bytes'] += snapshot.params.nbytes + snapshot.target.nbytes
    return snapshot

  def apply(
    self, gradient: np.ndarray, version: int, learning_rate: float
  ) -> None:
    """Applies a gradient `[P]` of the parameters of `version`.

    Too old ones are discarded, and counted.
    """
    if self._lock:
      start = time.perf_counter()
      # The kernel frees the lock of a process that ends. One that has hung is
      # killed; a process that waits here must not look as if it had hung, too.
      while not self._try_lock():
        time.sleep(_LOCK_SECONDS)
      self._board.row.lock_wait += time.perf_counter() - start
    try:
      self._apply(gradient, version, learning_rate)
    finally:
      if self._lock:
        fcntl.lockf(self._memory.fd, fcntl.LOCK_UN)

  def _try_lock(self) -> bool:
    try:
      fcntl.lockf(self._memory.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      return False
    return True

  def _apply(
    self, gradient: np.ndarray, version: int, learning_rate: float
  ) -> None:
    age = max(self._board.version() - version, 0)
    if self._max_staleness and age > self._max_staleness:
      self._board.row.stale += 1
      return
    self._board.count(age)
    flat.step_in_place(
      self._trainer.step, self._params, self._optimizer, gradient, learning_rate
    )
    self._board.row.updates += 1
    self._board.row['bytes'] += gradient.nbytes
    trainer = self._trainer.trainer
    if self._board.target_is_due(trainer.target_update_period):
      update_target(trainer.target_update_rate, self._params, self._target)

  def vectors(self) -> flat.Vectors:
    """Returns a copy of all that training changes, for a checkpoint."""
    return flat.Vectors(
      self._params.copy(),
      self._target.copy(),
      [x.copy() for x in self._optimizer],
    )


class SynchronousMemory(SharedMemory):
  """Memory that the first worker updates with the mean of one gradient of each.

  The others count the gradients that they have written, and wait until the
  first worker has applied as many.
  """

  def __init__(
    self,
    trainer: flat.FlatTrainer,
    board: board_lib.Board,
    fds: Mapping[str, int],
    ready: Callable[[], Sequence[int]],  # returns other workers, by index
    count: int,  # of workers
    patience: float,  # seconds that the first one waits for another's gradient
  ):
    """Makes the memory, or opens that of `fds`; see `SharedMemory`."""
    super().__init__(trainer, board, fds)
    memory = memory_lib.Memory(
      [('i8', (count,)), ('i8', (count,)), ('f4', (count, trainer.size))],
      fds.get('gradients'),
    )
    self._written, self._applied, self._gradients = memory.arrays
    self._written[board.index] = self._applied[board.index]
    self._events = [
      links.ProcessEvent(fds.get(f'event-{index}')) for index in range(count)
    ]
    self.fds |= {'gradients': memory.fd}
    self.fds |= {f'event-{i}': event.fd for i, event in enumerate(self._events)}
    self._ready, self._patience = ready, patience

  def apply(
    self, gradient: np.ndarray, version: int, learning_rate: float
  ) -> None:
    index = self._board.index
    self._gradients[index] = gradient
    if index:
      self._written[index] += 1
      self._events[0].set()
      while self._is_waiting(index) and not self._board.has_ended():
        self._events[index].wait()
      return
    self._wait_for_all()
    # A worker that has died meanwhile is not ready any more.
    present = [i for i in self._ready() if self._is_waiting(i)]
    mean = self._gradients[[index, *present]].mean(axis=0)
    super().apply(mean, version, learning_rate)
    for other in present:
      self._applied[other] = self._written[other]
      self._events[other].set()

  def _is_waiting(self, index: int) -> bool:
    """Whether a worker's gradient is there, but not applied yet."""
    return bool(self._written[index] != self._applied[index])

  def _wait_for_all(self) -> None:
    deadline = time.monotonic() + self._patience
    while late := [i for i in self._ready() if not self._is_waiting(i)]:
      if time.monotonic() > deadline:
        raise coordinator.WorkerFailed(
          f'Worker {late[0]} has not answered for {self._patience:g} s; give '
          'it longer with --config.asynchronous.patience, or start the run '
          'again to resume from its last checkpoint.'
        )
      self._events[0].wait()


def update_target(rate: float, params: np.ndarray, target: np.ndarray) -> None:
  """Updates the target network's parameters in place."""
  target += np.float32(rate) * (params - target)
