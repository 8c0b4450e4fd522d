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
    self, layout: Sequence[tuple[Any, tuple[int, ...]]], fd: int | None = None
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
