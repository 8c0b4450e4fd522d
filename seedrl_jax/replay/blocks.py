"""Memory for blocks of unrolls: their layout, alignment and recycling."""

import collections
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from seedrl_jax import types
from seedrl_jax.replay import base
from seedrl_jax.runtime import nest

# JAX on CPU aliases only NumPy arrays of this alignment.
_ALIGNMENT = 64


class UnrollLayout:
  """The memory layout of an unroll's leaves; see also `TrajectoryStore`."""

  def __init__(self, unroll_spec: types.Unroll, overlap: int = 1):
    """Raises ValueError if a leaf is not numeric."""
    named = nest.flatten_with_paths(unroll_spec)
    self.unroll_spec = unroll_spec
    self.overlap = overlap
    self.paths = [path for path, _ in named]
    self.specs: list[types.ArraySpec] = [spec for _, spec in named]
    # For each leaf, whether it is `[T + 1, W, ...]` in a block.
    self.time_major = [path.startswith('steps.') for path in self.paths]
    # Raw memory cannot be viewed as Python objects.
    if any(spec.dtype.hasobject for spec in self.specs):
      raise ValueError(
        'Unrolls hold numbers only; an observation is of objects.'
      )
    self.unroll_bytes = sum(map(_num_bytes, self.specs))
    # Steps in an unroll, T + 1.
    self.num_steps = self.specs[self.time_major.index(True)].shape[0]
    # Steps between the starts of an environment's consecutive unrolls.
    self.stride = self.num_steps - overlap

  def signature(self) -> dict[str, Any]:
    """Returns `stride` and each leaf's name, shape and type, as JSON values."""
    leaves = [
      [path, list(spec.shape), spec.dtype.str]
      for path, spec in zip(self.paths, self.specs, strict=True)
    ]
    return {'stride': self.stride, 'leaves': leaves}

  def check_signature(self, start: str, saved: Mapping[str, Any]) -> None:
    """Raises CheckpointError, beginning with `start`, if `saved` differs."""
    current = {path: leaf for path, *leaf in self.signature()['leaves']}
    try:
      before = {str(path): leaf for path, *leaf in saved['leaves']}
      stride = saved['stride']
    except (KeyError, TypeError, ValueError) as e:
      raise base.CheckpointError(
        f'{start}: it does not say what its unrolls are ({e!r}).'
      ) from e
    for name in sorted(before | current):
      if before.get(name) != current.get(name):
        raise base.CheckpointError(
          f'{start}: {name} is {before.get(name)} in it and '
          f'{current.get(name)} here (shape and type of one unroll).'
        )
    # With another stride, some steps would be trained on too often or never.
    if stride != self.stride:
      raise base.CheckpointError(
        f'{start}: a sequence begins every {stride} steps in it and every '
        f'{self.stride} here (--config.unroll_length).'
      )

  def new_block(self, width: int) -> base.Block:
    """Returns a block in one newly allocated, aligned buffer."""
    sizes = [_num_bytes(spec) * width for spec in self.specs]
    # Not zeroed: pages are mapped as they are written.
    raw = np.empty(sum(map(_aligned, sizes)) + _ALIGNMENT, np.uint8)
    offset = -raw.ctypes.data % _ALIGNMENT
    leaves = []
    for spec, size, major in zip(
      self.specs, sizes, self.time_major, strict=True
    ):
      steps = spec.shape[:1] if major else ()
      shape = (*steps, width, *spec.shape[len(steps) :])
      leaf = raw[offset : offset + size].view(spec.dtype).reshape(shape)
      leaves.append(leaf)
      offset += _aligned(size)
    unroll = nest.unflatten(self.unroll_spec, leaves)
    return base.Block(unroll, leaves, width)

  def split(self, leaves: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Returns the entries of leaves under `steps`, and those of the others."""
    pairs = list(zip(leaves, self.time_major, strict=True))
    steps = [leaf for leaf, major in pairs if major]
    return steps, [leaf for leaf, major in pairs if not major]

  def rows(self, block: base.Block) -> list[np.ndarray]:
    """Returns views of the leaves, `[W, T + 1, ...]` or `[W, ...]`."""
    return [
      leaf.swapaxes(0, 1) if major else leaf
      for leaf, major in zip(block.leaves, self.time_major, strict=True)
    ]


def _num_bytes(spec: types.ArraySpec) -> int:
  return math.prod(spec.shape) * spec.dtype.itemsize


def _aligned(size: int) -> int:
  return -(-size // _ALIGNMENT) * _ALIGNMENT


class BlockPool:
  """Recycles blocks of one width; thread-safe. Grows to the peak of use."""

  def __init__(self, layout: UnrollLayout, width: int):
    self.layout = layout
    self.width = width
    # A deque's append and pop are atomic: no lock on the hot path. The last one
    # returned is taken first, as it may still be in the CPU's caches.
    self._free: collections.deque[base.Block] = collections.deque()

  def take(self) -> base.Block:
    """Returns a block with arbitrary contents."""
    try:
      return self._free.pop()
    except IndexError:
      return self.layout.new_block(self.width)

  def give_back(self, blocks: Iterable[base.Block]) -> None:
    """Takes back blocks that are no longer in use."""
    self._free.extend(blocks)
