"""Memory for blocks of unrolls: their layout, alignment and recycling.

Called by the tables of the embedded store, and by any backend that has to
lend blocks to writers.
"""

import collections
import math

import numpy as np

from seedrl_jax import types
from seedrl_jax.replay import base, nest

# What JAX on CPU asks for before it aliases a NumPy array.
_ALIGNMENT = 64


class UnrollLayout:
  """How the leaves of an unroll lie in memory.

  Attributes:
    unroll_spec: `types.Unroll` of `types.ArraySpec` for one unroll: leaves
      under `steps` are `[T + 1, ...]`, others `[...]`.
    specs: its leaves.
    paths: their names, for messages and files.
    time_major: for each leaf, whether a block has it as `[T + 1, W, ...]`.
  """

  def __init__(self, unroll_spec: types.Unroll):
    """Lays `unroll_spec` out; ValueError where a leaf is not of numbers."""
    named = nest.flatten_with_paths(unroll_spec)
    self.unroll_spec = unroll_spec
    self.paths = [path for path, _ in named]
    self.specs = [
      types.ArraySpec(tuple(spec.shape), np.dtype(spec.dtype))
      for _, spec in named
    ]
    self.time_major = [path.startswith('steps.') for path in self.paths]
    # numpy cannot make views of other types of raw memory than plain ones.
    if any(spec.dtype.hasobject for spec in self.specs):
      raise ValueError(
        'Unrolls hold numbers only; an observation is of objects.'
      )

  @property
  def unroll_bytes(self) -> int:
    """What one unroll takes."""
    return sum(math.prod(s.shape) * s.dtype.itemsize for s in self.specs)

  def block_shape(self, leaf: int, width: int) -> tuple[int, ...]:
    """Returns a leaf's shape in a block of `width` unrolls."""
    shape = self.specs[leaf].shape
    if self.time_major[leaf]:
      return (shape[0], width, *shape[1:])
    return (width, *shape)

  def new_block(self, width: int) -> base.Block:
    """Returns a block in one fresh, aligned piece of memory."""
    shapes = [self.block_shape(i, width) for i in range(len(self.specs))]
    sizes = [
      math.prod(shape) * spec.dtype.itemsize
      for shape, spec in zip(shapes, self.specs, strict=True)
    ]
    # Empty memory: pages come as they are written.
    raw = np.empty(sum(map(_aligned, sizes)) + _ALIGNMENT, np.uint8)
    offset = -raw.ctypes.data % _ALIGNMENT
    leaves = []
    for shape, spec, size in zip(shapes, self.specs, sizes, strict=True):
      leaf = raw[offset : offset + size].view(spec.dtype).reshape(shape)
      leaves.append(leaf)
      offset += _aligned(size)
    unroll = nest.unflatten(self.unroll_spec, leaves)
    return base.Block(unroll, leaves, width)


def _aligned(size: int) -> int:
  return -(-size // _ALIGNMENT) * _ALIGNMENT


class BlockPool:
  """Recycles blocks of one width; any thread may call it.

  It keeps no more blocks than were once in use at the same time.
  """

  def __init__(self, layout: UnrollLayout, width: int):
    """Makes an empty pool of blocks of `width` unrolls."""
    self.width = width
    self._layout = layout
    # A deque's append and pop are atomic: no lock on the hot path. The last
    # one given back comes first, as it may still be in the caches.
    self._free: collections.deque[base.Block] = collections.deque()

  def take(self) -> base.Block:
    """Returns a block whose contents are arbitrary."""
    try:
      return self._free.pop()
    except IndexError:
      return self._layout.new_block(self.width)

  def give_back(self, block: base.Block) -> None:
    """Takes a block that nobody uses any more."""
    self._free.append(block)
