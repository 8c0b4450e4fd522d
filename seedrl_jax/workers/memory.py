"""Arrays in memory that several processes have."""

import mmap
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

# Each array begins at a multiple of it: a line of the processors' caches.
_ALIGNMENT = 64


class Memory:
  """Anonymous memory of fixed arrays, which child processes can open, too.

  It goes with the last process that has it.

  Attributes:
    fd: file descriptor, to hand to child processes.
    arrays: those of the layout.
  """

  def __init__(
    self,
    layout: Sequence[tuple[Any, tuple[int, ...]]],
    fd: int | None = None,
  ):
    """Makes the memory, all zero, or opens that of `fd`.

    `layout` has a dtype and a shape for each array.
    """
    lines = [
      -(-np.dtype(dtype).itemsize * int(np.prod(shape)) // _ALIGNMENT)
      for dtype, shape in layout
    ]
    total = max(sum(lines), 1) * _ALIGNMENT
    self.fd = os.memfd_create('seedrl') if fd is None else fd
    if fd is None:
      os.ftruncate(self.fd, total)
    memory = mmap.mmap(self.fd, total)
    starts = np.cumsum([0, *lines]) * _ALIGNMENT
    self.arrays = [
      np.ndarray(shape, dtype, memory, int(start))
      for (dtype, shape), start in zip(layout, starts, strict=False)
    ]


class Snapshot:
  """Saved arrays in memory that outlives the process that saves them.

  Attributes:
    fd: file descriptor, to hand to child processes.
  """

  def __init__(
    self,
    layout: Sequence[tuple[Any, tuple[int, ...]]],
    fd: int | None = None,
  ):
    """Makes the memory or opens that of `fd`; see `Memory`."""
    # A process that dies while it writes one slot leaves the other.
    slots = [(dtype, (2, *shape)) for dtype, shape in layout]
    self._memory = Memory([('i8', (3,)), *slots], fd)
    # The newest slot, and the versions of both.
    self._numbers, *self._slots = self._memory.arrays
    self.fd = self._memory.fd

  def save(self, arrays: Sequence[np.ndarray], version: int) -> None:
    slot = 1 - self._numbers[0]
    for slots, array in zip(self._slots, arrays, strict=True):
      slots[slot] = array
    self._numbers[1 + slot] = version
    self._numbers[0] = slot

  def load(self) -> tuple[list[np.ndarray], int]:
    """Returns copies of the arrays, and their version."""
    slot = self._numbers[0]
    arrays = [np.array(slots[slot]) for slots in self._slots]
    return arrays, int(self._numbers[1 + slot])
