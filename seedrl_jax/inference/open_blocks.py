"""Blocks of the trajectory store while the assembler fills them.

A block has W columns, each of which takes one unroll at a time, and rows for
its T + 1 steps. The place of a step is one integer, its *cell*:
`(serial * (T + 1) + row) * W + column`, with the serial number of the block;
one step later is W cells further. The assembler keeps a cell for every
environment, and nothing here knows whose they are. All work is on arrays of
cells; those that are side by side are recognised, so that slices copy them.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from seedrl_jax.replay import base as replay

# A straggler's column moves on once the others could have filled theirs this
# many times, so that one slow environment does not hold up the unrolls beside
# it. At 1, the environment that takes the place would be as late already.
_PATIENCE = 2


@dataclasses.dataclass(eq=False)
class OpenBlock:
  """Storage that is being filled."""

  serial: int
  storage: replay.Block
  steps: list[np.ndarray]  # leaves of unroll.steps, [T + 1, W, ...]
  flat: list[np.ndarray]  # the same memory, [(T + 1) * W, ...]
  core: list[np.ndarray]  # leaves of unroll.initial_core, [W, ...]
  unassigned: int  # columns from here on were never given out
  freed: list[int]  # columns that were given back
  missing: int  # columns that are not full yet
  patience: int  # younger blocks that may be complete first
  overtaken: int = 0  # younger blocks that were


class Run(NamedTuple):
  """Part of a batch that goes to one block: `flat[target] = batch[source]`."""

  block: OpenBlock
  source: np.ndarray | None  # int [n], or None for all of the batch
  target: Any  # slice or int [n]


class OpenBlocks:
  """Gives out columns, finds and copies cells, and tells what is complete."""

  def __init__(
    self,
    allocate: Callable[[], replay.Block],
    num_envs: int,
    num_transitions: int,
    block_width: int,
  ):
    """Starts with no block.

    Args:
      allocate: gives storage for W unrolls.
      num_envs: environments that share the blocks.
      num_transitions: T; an unroll has T + 1 steps.
      block_width: W, columns of a block.
    """
    self._allocate = allocate
    self._width = block_width
    self._block_cells = (num_transitions + 1) * block_width
    self._patience = _PATIENCE * -(-num_envs // block_width)
    self._ramp = np.arange(block_width)
    self._blocks: dict[int, OpenBlock] = {}
    self._next_serial = 0

  def __len__(self) -> int:
    """Returns how many are being filled."""
    return len(self._blocks)

  def assign(
    self,
    env_id: np.ndarray,
    first_row: int,
    blocks: list[OpenBlock] | None = None,
  ) -> np.ndarray:
    """Gives environments new columns, of all open blocks the oldest's first.

    Args:
      env_id: int `[n]`, run-wide ids, to be recorded with the unrolls.
      first_row: row of their next step.
      blocks: to use in place of all open ones, before new ones are opened.

    Returns:
      Their cells, int `[n]`.
    """
    cells = np.empty(len(env_id), np.int64)
    given = 0
    blocks = list(self._blocks.values()) if blocks is None else blocks
    while given < len(env_id):
      block = blocks.pop(0) if blocks else self._open()
      columns = self._take_columns(block, len(env_id) - given)
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
    """Takes back the columns of cells `[n]`; their steps are dropped."""
    for block, columns in self._columns_by_block(cells):
      block.freed.extend(columns.tolist())

  def runs(self, cells: np.ndarray) -> tuple[tuple[Run, ...], Any]:
    """Groups a batch's cells by block.

    Args:
      cells: int `[n]`, in the order of the batch, `n` > 0.

    Returns:
      The runs, and the row of the cells: an int where they are side by side
      (there is one run then, to a slice), else int `[n]`.
    """
    span = self._span(cells)
    if span is not None:
      block, row, columns = span
      start = row * self._width + columns.start
      return (Run(block, None, slice(start, start + len(cells))),), row
    serials, places = np.divmod(cells, self._block_cells)
    serial = int(serials[0])
    if (serials == serial).all():
      run = Run(self._blocks[serial], None, places)
      return (run,), places // self._width
    runs = []
    for serial in np.unique(serials).tolist():
      source = np.flatnonzero(serials == serial)
      runs.append(Run(self._blocks[serial], source, places[source]))
    return tuple(runs), places // self._width

  def rows(self, cells: np.ndarray) -> np.ndarray:
    """Returns the rows, int `[n]`, of cells `[n]`."""
    return cells % self._block_cells // self._width

  def in_block(self, cells: np.ndarray, block: OpenBlock) -> np.ndarray:
    """Returns which of cells `[n]` are in a block, bool `[n]`."""
    return cells // self._block_cells == block.serial

  def copy_overlap(
    self, old: np.ndarray, new: np.ndarray, overlap: int
  ) -> None:
    """Copies the last steps of full unrolls to the start of the next ones.

    Args:
      old: int `[n]`, a cell in each full column.
      new: int `[n]`, a cell in the column that each environment has now.
      overlap: how many steps.
    """
    for a, source, b, target in self._column_pairs(old, new):
      for x, y in zip(a.steps, b.steps, strict=True):
        y[:overlap, target] = x[-overlap:, source]

  def write_core(self, cells: np.ndarray, core: list[np.ndarray]) -> None:
    """Writes what the unrolls of cells `[n]` start with, leaves `[n, ...]`."""
    serials = cells // self._block_cells
    columns = cells % self._width
    for serial in np.unique(serials).tolist():
      here = serials == serial
      for array, x in zip(self._blocks[serial].core, core, strict=True):
        array[columns[here]] = x[here]

  def take_complete(self, cells: np.ndarray) -> list[OpenBlock]:
    """Counts columns `[n]` that are full now.

    Returns:
      Blocks that have no other; these are not among the open ones any more.
    """
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
      # Where no column is full, no unroll waits for the others.
      if block.overtaken >= block.patience and block.missing < self._width
    ]

  def move(self, block: OpenBlock, cells: np.ndarray) -> np.ndarray:
    """Moves unfinished columns to where they hold up no unroll.

    Args:
      block: one that is overdue.
      cells: int `[n]`, in that block.

    Returns:
      The cells in their new columns, int `[n]`.
    """
    # Those that take the places have as long again, and then longer: however
    # slow they are, the block is complete one day.
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
    storage = self._allocate()
    unroll = storage.unroll
    steps = jax.tree.leaves(unroll.steps)
    block = OpenBlock(
      serial=self._next_serial,
      storage=storage,
      steps=steps,
      flat=[x.reshape(self._block_cells, *x.shape[2:]) for x in steps],
      core=jax.tree.leaves(unroll.initial_core),
      unassigned=0,
      freed=[],
      missing=self._width,
      patience=self._patience,
    )
    self._blocks[block.serial] = block
    self._next_serial += 1
    return block

  def _take_columns(self, block: OpenBlock, most: int) -> np.ndarray:
    freed = block.freed[:most]
    del block.freed[:most]
    stop = min(self._width, block.unassigned + most - len(freed))
    fresh = np.arange(block.unassigned, stop)
    block.unassigned = stop
    return np.concatenate([np.array(freed, int), fresh]) if freed else fresh

  def _span(self, cells: np.ndarray) -> tuple[OpenBlock, int, slice] | None:
    """Returns block, row and columns of cells side by side; None for others."""
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
      source = self._as_slice(old_column[here])
      target = self._as_slice(new_column[here])
      yield self._blocks[a], source, self._blocks[b], target

  def _as_slice(self, columns: np.ndarray) -> slice | np.ndarray:
    """Returns consecutive columns as a slice: a plain copy, not a gather."""
    first, n = int(columns[0]), len(columns)
    if (columns == first + self._ramp[:n]).all():
      return slice(first, first + n)
    return columns
