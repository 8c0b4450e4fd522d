"""Blocks of the trajectory store that the assembler fills.

A block has W columns, each for one unroll, and T + 1 rows of steps. A step's
place is an integer, its *cell*: `(serial * (T + 1) + row) * W + column`, with
the block's serial number; the next step is W cells further.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from seedrl_jax.envs import base as envs
from seedrl_jax.replay import base as replay

# A straggler's column moves on once the others could have filled theirs this
# many times, so that a slow environment does not hold up the unrolls beside it.
# At 1, the environment that takes its place would already be as late.
_PATIENCE = 2


@dataclasses.dataclass(eq=False)
class OpenBlock:
  """A block that is being filled."""

  serial: int
  storage: replay.Block
  steps: list[np.ndarray]  # leaves of unroll.steps, [T + 1, W, ...]
  flat: list[np.ndarray]  # the same memory, [(T + 1) * W, ...]
  core: list[np.ndarray]  # leaves of unroll.initial_core, [W, ...]
  unassigned: int  # columns from here on are unused
  freed: list[int]  # columns to use again
  missing: int  # columns that are not full yet
  patience: int  # younger blocks that may complete first
  overtaken: int = 0  # younger blocks that did

  def take_columns(self, most: int) -> np.ndarray:
    """Assigns up to `most` columns, int `[n]`; freed ones first."""
    freed = self.freed[:most]
    del self.freed[:most]
    start = self.unassigned
    self.unassigned = min(self.storage.width, start + most - len(freed))
    fresh = np.arange(start, self.unassigned)
    return np.concatenate([np.array(freed, int), fresh]) if freed else fresh


class BlockPart(NamedTuple):
  """Part of a batch in one block: `flat[target] = batch[source]`."""

  block: OpenBlock
  source: np.ndarray | None  # int [n], or None for all of the batch
  target: Any  # slice or int [n]


class OpenBlocks:
  """Assigns columns, finds and copies cells, and returns complete blocks."""

  def __init__(
    self,
    allocate: Callable[[], replay.Block],
    num_envs: int,
    num_transitions: int,
    block_width: int,
  ):
    self._allocate = allocate
    self._width = block_width
    self._block_cells = (num_transitions + 1) * block_width
    self._patience = _PATIENCE * -(-num_envs // block_width)
    self._ramp = np.arange(block_width)
    self._blocks: dict[int, OpenBlock] = {}
    self._next_serial = 0

  def __len__(self) -> int:
    """Returns the number of open blocks."""
    return len(self._blocks)

  def assign(
    self,
    env_id: np.ndarray,
    first_row: int,
    blocks: list[OpenBlock] | None = None,
  ) -> np.ndarray:
    """Returns cells, int `[n]`, in new columns; the oldest blocks come first.

    Args:
      env_id: int `[n]`, run-wide ids, recorded with the unrolls.
      first_row: row of their next step.
      blocks: to use before new ones are opened; None: all open ones.
    """
    cells = np.empty(len(env_id), np.int64)
    given = 0
    blocks = list(self._blocks.values()) if blocks is None else blocks
    while given < len(env_id):
      block = blocks.pop(0) if blocks else self._open()
      columns = block.take_columns(len(env_id) - given)
      if not len(columns):
        continue
      part = slice(given, given + len(columns))
      cells[part] = (
        block.serial * self._block_cells + first_row * self._width + columns
      )
      block.storage.unroll.env_id[columns] = env_id[part]
      given += len(columns)
    return cells

  def free(self, cells: np.ndarray) -> None:
    """Frees the columns of cells `[n]`; their steps are dropped."""
    for block, columns in self._columns_by_block(cells):
      block.freed.extend(columns.tolist())

  def parts(self, cells: np.ndarray) -> tuple[tuple[BlockPart, ...], Any]:
    """Groups a batch's cells `[n]`, `n` > 0, by block; returns parts and rows.

    If the cells are consecutive: one part and an int; else rows int `[n]`.
    """
    span = self._span(cells)
    if span is not None:
      block, row, columns = span
      start = row * self._width + columns.start
      return (BlockPart(block, None, slice(start, start + len(cells))),), row
    serials, places = np.divmod(cells, self._block_cells)
    serial = int(serials[0])
    if (serials == serial).all():
      part = BlockPart(self._blocks[serial], None, places)
      return (part,), places // self._width
    parts = []
    for serial in np.unique(serials).tolist():
      source = np.flatnonzero(serials == serial)
      parts.append(BlockPart(self._blocks[serial], source, places[source]))
    return tuple(parts), places // self._width

  def rows(self, cells: np.ndarray) -> np.ndarray:
    """Returns the rows, int `[n]`, of cells `[n]`."""
    return cells % self._block_cells // self._width

  def in_block(self, cells: np.ndarray, block: OpenBlock) -> np.ndarray:
    """Returns which of cells `[n]` are in a block, bool `[n]`."""
    return cells // self._block_cells == block.serial

  def copy_overlap(
    self, old: np.ndarray, new: np.ndarray, overlap: int
  ) -> None:
    """Copies full unrolls' last steps to new columns; cells `[n]` name both."""
    for a, source, b, target in self._column_pairs(old, new):
      for x, y in zip(a.steps, b.steps, strict=True):
        y[:overlap, target] = x[-overlap:, source]

  def write_core(self, cells: np.ndarray, core: list[np.ndarray]) -> None:
    """Writes initial core states, leaves `[n, ...]`, for unrolls at cells."""
    serials = cells // self._block_cells
    columns = cells % self._width
    for serial in np.unique(serials).tolist():
      here = serials == serial
      for array, x in zip(self._blocks[serial].core, core, strict=True):
        array[columns[here]] = x[here]

  def take_complete(self, cells: np.ndarray) -> list[OpenBlock]:
    """Marks columns of cells `[n]` full; removes and returns full blocks."""
    complete = []
    for block, columns in self._columns_by_block(cells):
      block.missing -= len(columns)
      if not block.missing:
        complete.append(block)
    for block in complete:
      del self._blocks[block.serial]
    for done in complete:
      for block in self._blocks.values():
        block.overtaken += block.serial < done.serial
    return complete

  def overdue(self) -> list[OpenBlock]:
    """Returns blocks whose full unrolls have waited too long for the others."""
    return [
      block
      for block in self._blocks.values()
      # If no column is full, no unroll waits.
      if block.overtaken >= block.patience and block.missing < self._width
    ]

  def move(self, block: OpenBlock, cells: np.ndarray) -> np.ndarray:
    """Moves columns of an overdue block; maps cells `[n]` to new cells."""
    # Doubled at each move, so that the block completes at last.
    block.patience *= 2
    others = [b for b in self._blocks.values() if b.missing == self._width]
    columns = cells % self._width
    env_id = block.storage.unroll.env_id[columns]
    new = self.assign(env_id, 0, others)
    for _, source, other, target in self._column_pairs(cells, new):
      for x, y in zip(block.steps, other.steps, strict=True):
        y[:, target] = x[:, source]
      for x, y in zip(block.core, other.core, strict=True):
        y[target] = x[source]
    block.freed.extend(columns.tolist())
    return new + self.rows(cells) * self._width

  def _open(self) -> OpenBlock:
    block = _make_block(self._next_serial, self._allocate(), self._patience)
    self._blocks[block.serial] = block
    self._next_serial += 1
    return block

  def _span(self, cells: np.ndarray) -> tuple[OpenBlock, int, slice] | None:
    """Returns block, row and columns of consecutive cells, else None."""
    n = len(cells)
    if not n:
      return None
    start = int(cells[0])
    serial, place = divmod(start, self._block_cells)
    row, column = divmod(place, self._width)
    if column + n <= self._width and (cells == start + self._ramp[:n]).all():
      return self._blocks[serial], row, slice(column, column + n)
    return None

  def _columns_by_block(
    self, cells: np.ndarray
  ) -> Iterator[tuple[OpenBlock, np.ndarray]]:
    span = self._span(cells)
    if span is not None:
      yield span[0], self._ramp[span[2]]
      return
    serials, places = np.divmod(cells, self._block_cells)
    columns = places % self._width
    for serial in np.unique(serials).tolist():
      yield self._blocks[serial], columns[serials == serial]

  def _column_pairs(
    self, old: np.ndarray, new: np.ndarray
  ) -> Iterator[tuple[OpenBlock, Any, OpenBlock, Any]]:
    """Groups pairs of cells by their blocks; yields blocks and columns."""
    spans = self._span(old), self._span(new)
    if spans[0] is not None and spans[1] is not None:
      yield spans[0][0], spans[0][2], spans[1][0], spans[1][2]
      return
    old_serial, old_place = np.divmod(old, self._block_cells)
    new_serial, new_place = np.divmod(new, self._block_cells)
    old_column, new_column = old_place % self._width, new_place % self._width
    pairs = set(zip(old_serial.tolist(), new_serial.tolist(), strict=True))
    for a, b in pairs:
      here = (old_serial == a) & (new_serial == b)
      source = envs.as_slice(old_column[here])
      target = envs.as_slice(new_column[here])
      yield self._blocks[a], source, self._blocks[b], target


def _make_block(serial: int, storage: replay.Block, patience: int) -> OpenBlock:
  steps = jax.tree.leaves(storage.unroll.steps)
  return OpenBlock(
    serial=serial,
    storage=storage,
    steps=steps,
    flat=[x.reshape(-1, *x.shape[2:]) for x in steps],
    core=jax.tree.leaves(storage.unroll.initial_core),
    unassigned=0,
    freed=[],
    missing=storage.width,
    patience=patience,
  )
