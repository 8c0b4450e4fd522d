"""Memory for blocks of unrolls: their layout, alignment and recycling."""

import collections
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from seedrl_jax import types
from seedrl_jax.replay import base, nest, table_configs

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
    overlap: steps that consecutive unrolls of an environment share.
  """

  def __init__(self, unroll_spec: types.Unroll, overlap: int = 1):
    """Lays `unroll_spec` out.

    Args:
      unroll_spec: see the class.
      overlap: see the class; only `signature` uses it.

    Raises:
      ValueError: if a leaf is not of numbers.
    """
    named = nest.flatten_with_paths(unroll_spec)
    self.unroll_spec = unroll_spec
    self.overlap = overlap
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

  @property
  def stride(self) -> int:
    """Steps from an unroll's start to that of the environment's next."""
    length = self.specs[self.time_major.index(True)].shape[0]
    return length - self.overlap

  def signature(self) -> dict[str, Any]:
    """Returns how unrolls were cut and what they hold, as JSON values.

    That is `stride`, and name, shape and type of every leaf under `leaves`.
    """
    leaves = [
      [path, list(spec.shape), spec.dtype.str]
      for path, spec in zip(self.paths, self.specs, strict=True)
    ]
    return {'stride': self.stride, 'leaves': leaves}

  def check_signature(self, start: str, saved: Mapping[str, Any]) -> None:
    """Checks that saved unrolls are like these.

    Args:
      start: of the message.
      saved: what `signature` gave.

    Raises:
      CheckpointError: naming what differs.
    """
    mine = self.signature()
    before = {path: leaf for path, *leaf in saved['leaves']}
    wanted = {path: leaf for path, *leaf in mine['leaves']}
    for name in sorted(before | wanted):
      if before.get(name) != wanted.get(name):
        raise base.CheckpointError(
          f'{start}: {name} is {before.get(name)} in it and '
          f'{wanted.get(name)} here (shape and type of one unroll).'
        )
    # Of equal length, but trained on in another part: of some transitions too
    # often, or never.
    if saved['stride'] != mine['stride']:
      raise base.CheckpointError(
        f'{start}: a sequence begins every {saved["stride"]} steps in it and '
        f'every {mine["stride"]} here (--config.unroll_length).'
      )

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

  def set_column(
    self, block: base.Block, column: int, leaves: Sequence[np.ndarray]
  ) -> None:
    """Writes one unroll's leaves, shaped as `specs`, to a column of a block."""
    for leaf, major, value in zip(
      block.leaves, self.time_major, leaves, strict=True
    ):
      if major:
        leaf[:, column] = value
      else:
        leaf[column] = value


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
    self._closed = False
    # A deque's append and pop are atomic: no lock on the hot path. The last
    # one given back comes first, as it may still be in the caches.
    self._free: collections.deque[base.Block] = collections.deque()

  def take(self) -> base.Block:
    """Returns a block whose contents are arbitrary."""
    try:
      return self._free.pop()
    except IndexError:
      return self._layout.new_block(self.width)

  def lend(self) -> base.Block:
    """Lends a block to a writer.

    Raises:
      StoreClosed: after `close`.
    """
    if self._closed:
      raise base.StoreClosed('The store was closed: no more blocks.')
    block = self.take()
    block.lent = True
    return block

  def check_lent(self, block: base.Block) -> None:
    """Raises ValueError for a block that is not a writer's own."""
    if not block.lent or block.width != self.width:
      raise ValueError(
        'This block is not lent to a writer of this store: allocate() one for '
        'each insert.'
      )

  def close(self) -> None:
    """Ends the lending; what is in use goes on."""
    self._closed = True

  def give_back(self, blocks: Iterable[base.Block]) -> None:
    """Takes back blocks that are no longer in use."""
    self._free.extend(blocks)


def make_pools(
  layout: UnrollLayout,
  configs: Sequence[table_configs.TableConfig],
  block_width: int,
) -> dict[str, BlockPool]:
  """Makes the pools that writers borrow from, by table; equal widths share one.

  Args:
    layout: of the unrolls.
    configs: of the tables.
    block_width: of those without a width of their own.

  Raises:
    ValueError: if two tables have one name, or the width is 0.
  """
  if block_width < 1:
    raise ValueError(f'A block of {block_width} unrolls holds nothing.')
  widths = {c.name: c.block_width or block_width for c in configs}
  if len(widths) < len(configs):
    raise ValueError('Two tables have one name.')
  made = {width: BlockPool(layout, width) for width in widths.values()}
  return {name: made[width] for name, width in widths.items()}
