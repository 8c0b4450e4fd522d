"""Memory for blocks of unrolls: their layout, alignment and recycling.

Called by the tables of the embedded store, and by any backend that has to
lend blocks to writers.
"""

import collections
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

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
    overlap: steps that consecutive unrolls of an environment share.
  """

  def __init__(self, unroll_spec: types.Unroll, overlap: int = 1):
    """Lays `unroll_spec` out.

    Args:
      unroll_spec: see the class.
      overlap: see the class; of no matter but to `signature`.

    Raises:
      ValueError: where a leaf is not of numbers.
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

  def give_back(self, block: base.Block) -> None:
    """Takes a block that nobody uses any more."""
    self._free.append(block)


class WriterPools:
  """The pools that a store's writers borrow from; tables share what fits."""

  def __init__(
    self,
    layout: UnrollLayout,
    configs: Sequence[base.TableConfig],
    block_width: int,
  ):
    """Makes a pool for each width that a table of `configs` has.

    Args:
      layout: of the unrolls.
      configs: of the tables.
      block_width: of those without a width of their own.
    """
    widths = {c.name: c.block_width or block_width for c in configs}
    made = {width: BlockPool(layout, width) for width in widths.values()}
    self._pools = {name: made[width] for name, width in widths.items()}

  def __getitem__(self, table: str) -> BlockPool:
    """Returns the pool of a table's writers."""
    return self._pools[table]

  def close(self) -> None:
    """Ends the lending; see `BlockPool.close`."""
    for pool in self._pools.values():
      pool.close()


class PoolWriter(base.TrajectoryWriter):
  """Lends blocks of a pool and hands on those that come back."""

  def __init__(
    self,
    pool: BlockPool,
    insert: Callable[[base.Block, np.ndarray, float | None], None],
  ):
    """Makes a writer; `insert` takes block, checked priorities, time-out."""
    self._pool = pool
    self._insert = insert

  def allocate(self) -> base.Block:
    """See `TrajectoryWriter`."""
    return self._pool.lend()

  def insert(
    self,
    block: base.Block,
    priorities: np.ndarray | None = None,
    timeout: float | None = None,
  ) -> None:
    """See `TrajectoryWriter`."""
    self._pool.check_lent(block)
    checked = base.check_priorities(priorities, block.width)
    self._insert(block, checked, timeout)


def blocks_of_batch(
  config: base.TableConfig,
  batch_size: int,
  num_blocks: int | None,
  block_width: int,
) -> int:
  """Returns how many blocks a batch from a table comes in.

  Args:
    config: the table's rules.
    batch_size: unrolls per batch.
    num_blocks: that are wanted; None: see `TrajectoryStore.sampler`.
    block_width: unrolls in a block that writers fill.

  Raises:
    ValueError: where the table cannot give such batches.
  """
  limit, size = config.max_times_sampled, config.max_size
  if config.sampler == 'fifo':
    expected, rest = divmod(batch_size, block_width)
    if rest or expected == 0 or num_blocks not in (None, expected):
      raise ValueError(
        f'--config.batch_size={batch_size} in {num_blocks or "whole"} blocks: '
        f'a queue hands on blocks of {block_width} unrolls as they are.'
      )
    if batch_size > size:
      raise ValueError(
        f'--config.replay.max_size={size}: a queue must hold a batch of '
        f'{batch_size} unrolls, better two; raise it.'
      )
    return expected
  count = 1 if num_blocks is None else num_blocks
  if batch_size < 1 or count < 1 or batch_size % count:
    raise ValueError(
      f'--config.batch_size={batch_size}: cannot be split into {count} equal '
      'blocks; make it a multiple.'
    )
  if 0 < limit * size < batch_size:
    raise ValueError(
      f'--config.replay.max_size={size}: with max_times_sampled={limit} the '
      f'table never gives a batch of {batch_size}; raise one of them.'
    )
  return count
