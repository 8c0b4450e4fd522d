"""Assembles unrolls on the host, in place, from batches of single steps.

Storage comes from the trajectory store in blocks of W columns, laid out for
training (`[T + 1, W, ...]`). An environment owns one column at a time; every
step is written once, straight to where the learner will read it. A block goes
back to the store when its last column is full. There is no Python loop over
environments: a batch is written with one slice assignment an array where its
environments stand side by side at the same step, and with one indexed
assignment an array and block otherwise.

The place of an environment's next step is one integer, its *cell*:
`(serial * (T + 1) + row) * W + column`, with the serial number of its block.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from seedrl_jax.envs import batch_index
from seedrl_jax.replay import base as replay

# A straggler's column moves on once the others could have filled theirs this
# many times, so that one slow environment does not hold up the unrolls beside
# it. At 1, the environment that takes the place would be as late already.
_PATIENCE = 2

# Groups to remember; see `envs.batch_index`.
_MOST_GROUPS = 64

_NO_CELL = -1


@dataclasses.dataclass(eq=False)
class _Block:
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


class _Run(NamedTuple):
  """Part of a batch that goes to one block: `flat[target] = batch[source]`."""

  block: _Block
  source: Any  # int [n], or None for all of the batch
  target: Any  # slice or int [n]


@dataclasses.dataclass(eq=False, slots=True)
class _Group:
  """A batch of environments that may come again and again.

  While its environments stand side by side at the same step it has a block:
  `begin` need not look at their cells then, nor `finish` move these on. They
  are made good (`_settle`) before anything else reads them.
  """

  env_id: np.ndarray
  place: Any  # the same as a slice, where that can be
  block: _Block | None = None  # None: the cells say where they are
  row: int = 0  # of the next step
  start: int = 0  # its place in the flat block
  ahead: int = 0  # steps by which the cells lag behind


class Placement(NamedTuple):
  """Where one batch goes; made by `begin`, used up by `finish`.

  Attributes:
    group: the environments.
    core_rows: int `[m]`, rows of the batch whose core state before the step
      must be handed to `finish`: an unroll starts there.
  """

  group: _Group
  core_rows: np.ndarray
  runs: tuple[_Run, ...]
  full: Any  # bool [n] or bool: whose unroll this step completes


class UnrollAssembler:
  """Turns `[B]` steps, in any order of environments, into blocks of unrolls."""

  def __init__(
    self,
    allocate: Callable[[], replay.Block],
    insert: Callable[[replay.Block], None],
    global_env_id: np.ndarray,
    unroll_length: int,
    overlap: int,
    block_width: int,
  ):
    """Makes an assembler.

    Args:
      allocate: gives storage for W unrolls.
      insert: takes a complete block; may block (back pressure).
      global_env_id: int `[N]`, the run-wide id of each of the stream's
        training environments.
      unroll_length: T; an unroll has T + 1 steps.
      overlap: steps that consecutive unrolls of an environment share, 1..T.
      block_width: W, columns of a block.

    Raises:
      ValueError: where the overlap leaves an unroll no new step.
    """
    if not 1 <= overlap <= unroll_length:
      raise ValueError(
        f'Unrolls of {unroll_length} + 1 steps cannot overlap by {overlap}; '
        'raise --config.unroll_length.'
      )
    self._allocate = allocate
    self._insert = insert
    self._global_env_id = np.asarray(global_env_id, np.int32)
    self._length = unroll_length
    self._overlap = overlap
    self._stride = unroll_length + 1 - overlap  # new steps of an unroll
    self._width = block_width
    self._patience = _PATIENCE * -(-len(global_env_id) // block_width)
    self._block_cells = (unroll_length + 1) * block_width
    self._cell = np.full(len(global_env_id), _NO_CELL, np.int64)
    self._num_idle = len(global_env_id)  # environments without a column
    self._index = batch_index.BatchIndex()
    self._groups: dict[bytes, _Group] = {}
    self._side_by_side: list[_Group] = []  # those that have a block
    self._ramp = np.arange(len(global_env_id))
    self._blocks: dict[int, _Block] = {}
    self._next_serial = 0
    # Core states before the steps that the environment's next unrolls start
    # with, [N, depth, ...]; made when the first ones arrive. Where unrolls
    # overlap by more than half, the steps of one are the start of several.
    self._pending_core: list[np.ndarray] | None = None
    self._depth = unroll_length // self._stride
    # The number of each environment's unroll, modulo the depth.
    self._turn = np.zeros(len(global_env_id), np.int64)

  @property
  def num_open_blocks(self) -> int:
    """Blocks that are being filled."""
    return len(self._blocks)

  def begin(self, env_id: np.ndarray) -> Placement:
    """Finds the places of a batch.

    Args:
      env_id: int `[n]`, the stream's ids, unique.

    Returns:
      What `write` and `finish` need.
    """
    group = self._group(env_id)
    if group.block is not None:
      start = group.start
      runs = (_Run(group.block, None, slice(start, start + len(env_id))),)
      row: Any = group.row
    else:
      runs, row = self._find(group)
    full = row == self._length
    snapshot = row % self._stride == 0
    if isinstance(snapshot, np.ndarray):
      core_rows = np.flatnonzero(snapshot)
    else:
      core_rows = self._ramp[: len(env_id) if snapshot else 0]
    return Placement(group, core_rows, runs, full)

  def write(self, placement: Placement, leaves: list[Any]) -> None:
    """Writes a batch into its places.

    Args:
      placement: from `begin`.
      leaves: the leaves of the batch's `types.Steps`: arrays `[n, ...]` in the
        order of the batch, or scalars that hold for all of it.
    """
    for run in placement.runs:
      for array, leaf in zip(run.block.flat, leaves, strict=True):
        if run.source is not None and isinstance(leaf, np.ndarray):
          leaf = leaf[run.source]
        array[run.target] = leaf

  def finish(self, placement: Placement, core: list[np.ndarray]) -> float:
    """Advances the batch's environments and passes on what is complete.

    Args:
      placement: from `begin`; all leaves must have been written.
      core: leaves of the core state before the step, `[m, ...]`, of the rows
        `placement.core_rows`; empty where the agent keeps none.

    Returns:
      Seconds that handing over complete blocks took (back pressure).
    """
    group = placement.group
    env_id = group.env_id
    if core:
      self._settle()
      self._keep_core(env_id[placement.core_rows], core)
    full = placement.full
    if isinstance(full, np.ndarray):
      done = env_id[full] if full.any() else None
    else:
      done = env_id if full else None
    if done is None:
      if group.block is None:
        self._cell[group.place] += self._width
      else:
        group.row += 1
        group.start += self._width
        group.ahead += 1
      return 0.0
    self._settle()
    self._part(group)
    old_cells = self._cell[done]
    self._cell[env_id] += self._width
    self._turn[done] = (self._turn[done] + 1) % self._depth
    new_cells = self._assign(done, first_row=self._overlap)
    if self._pending_core is not None:
      turn = self._turn[done]
      self._write_core(new_cells, [x[done, turn] for x in self._pending_core])
    self._copy_overlap(old_cells, new_cells)
    start = time.perf_counter()
    self._complete(old_cells)
    return time.perf_counter() - start

  def reset(self, env_id: np.ndarray) -> None:
    """Drops the half-built unrolls of environments that went away.

    Args:
      env_id: int `[n]`, the stream's ids, unique; those without an unroll are
        ignored.
    """
    self._settle()
    self._part_all()
    cells = self._cell[env_id]
    self._cell[env_id] = _NO_CELL
    cells = cells[cells != _NO_CELL]
    self._num_idle += len(cells)
    for block, columns in self._columns_by_block(cells):
      block.freed.extend(columns.tolist())

  def _group(self, env_id: np.ndarray) -> _Group:
    """Returns a batch's group, remembered or new."""
    key = env_id.tobytes()
    group = self._groups.get(key)
    if group is None:
      env_id = env_id.copy()
      group = _Group(env_id, self._index(env_id))
      if len(self._groups) < _MOST_GROUPS:
        self._groups[key] = group
    return group

  def _find(self, group: _Group) -> tuple[tuple[_Run, ...], Any]:
    """Finds a group by its cells; returns the runs and the row(s)."""
    place = group.place
    for other in list(self._side_by_side):
      if not _are_apart(place, other.place):
        self._settle()
        self._part(other)
    cells = self._cell[place]
    if self._num_idle:
      fresh = cells == _NO_CELL
      self._num_idle -= int(np.count_nonzero(fresh))
      cells[fresh] = self._assign(group.env_id[fresh], first_row=0)
    runs, row = self._runs(cells)
    if isinstance(row, int) and isinstance(place, slice):
      group.block = runs[0].block
      group.row = row
      group.start = runs[0].target.start
      self._side_by_side.append(group)
    return runs, row

  def _settle(self) -> None:
    """Moves the cells of all groups on to where these are."""
    for group in self._side_by_side:
      self._cell[group.place] += group.ahead * self._width
      group.ahead = 0

  def _part(self, group: _Group) -> None:
    """Leaves a settled group to its cells, which are about to change."""
    if group.block is not None:
      group.block = None
      self._side_by_side.remove(group)

  def _part_all(self) -> None:
    for group in list(self._side_by_side):
      self._part(group)

  def _runs(self, cells: np.ndarray) -> tuple[tuple[_Run, ...], Any]:
    """Groups cells by block; returns the runs and the row(s) of the batch."""
    span = self._span(cells)
    if span is not None:
      block, row, column = span
      start = row * self._width + column.start
      return (_Run(block, None, slice(start, start + len(cells))),), row
    serials, places = np.divmod(cells, self._block_cells)
    serial = int(serials[0])
    if (serials == serial).all():
      run = _Run(self._blocks[serial], None, places)
      return (run,), places // self._width
    runs = []
    for serial in np.unique(serials).tolist():
      source = np.flatnonzero(serials == serial)
      runs.append(_Run(self._blocks[serial], source, places[source]))
    return tuple(runs), places // self._width

  def _span(self, cells: np.ndarray) -> tuple[_Block, int, slice] | None:
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
  ) -> Iterator[tuple[_Block, np.ndarray]]:
    span = self._span(cells)
    if span is not None:
      yield span[0], np.arange(span[2].start, span[2].stop)
      return
    serials, places = np.divmod(cells, self._block_cells)
    columns = places % self._width
    for serial in np.unique(serials).tolist():
      yield self._blocks[serial], columns[serials == serial]

  def _assign(
    self,
    env_id: np.ndarray,
    first_row: int,
    blocks: list[_Block] | None = None,
  ) -> np.ndarray:
    """Gives environments new columns, of all open blocks the oldest's first.

    Args:
      env_id: int `[n]`, the stream's ids.
      first_row: row of their next step.
      blocks: to use in place of all open ones, before new ones are opened.

    Returns:
      Their cells, int `[n]`.
    """
    cells = np.empty(len(env_id), np.int64)
    given = 0
    blocks = list(self._blocks.values()) if blocks is None else blocks
    while given < len(env_id):
      block = blocks.pop(0) if blocks else self._open_block()
      columns = self._take_columns(block, len(env_id) - given)
      if not len(columns):
        continue
      part = slice(given, given + len(columns))
      cells[part] = (
        block.serial * self._block_cells + first_row * self._width + columns
      )
      block.storage.unroll.env_id[columns] = self._global_env_id[env_id[part]]
      given += len(columns)
    self._cell[env_id] = cells
    return cells

  def _take_columns(self, block: _Block, most: int) -> np.ndarray:
    freed = block.freed[:most]
    del block.freed[:most]
    stop = min(self._width, block.unassigned + most - len(freed))
    fresh = np.arange(block.unassigned, stop)
    block.unassigned = stop
    return np.concatenate([np.array(freed, int), fresh]) if freed else fresh

  def _open_block(self) -> _Block:
    storage = self._allocate()
    unroll = storage.unroll
    steps = jax.tree.leaves(unroll.steps)
    block = _Block(
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

  def _keep_core(self, env_id: np.ndarray, core: list[np.ndarray]) -> None:
    """Keeps core states for the next unrolls, or for one that starts now."""
    if self._pending_core is None:
      shape = (len(self._cell), self._depth)
      self._pending_core = [
        np.zeros((*shape, *x.shape[1:]), x.dtype) for x in core
      ]
    cells = self._cell[env_id]
    ahead = cells % self._block_cells // self._width // self._stride
    turn = (self._turn[env_id] + ahead) % self._depth
    for pending, x in zip(self._pending_core, core, strict=True):
      pending[env_id, turn] = x
    starting = ahead == 0
    if starting.any():
      self._write_core(cells[starting], [x[starting] for x in core])

  def _write_core(self, cells: np.ndarray, core: list[np.ndarray]) -> None:
    """Writes the core states that the unrolls of cells `[n]` start with."""
    serials = cells // self._block_cells
    columns = cells % self._width
    for serial in np.unique(serials).tolist():
      here = serials == serial
      for array, x in zip(self._blocks[serial].core, core, strict=True):
        array[columns[here]] = x[here]

  def _copy_overlap(self, old: np.ndarray, new: np.ndarray) -> None:
    """Copies the last steps of full unrolls to the start of the next ones."""
    tail = slice(self._length + 1 - self._overlap, None)
    head = slice(0, self._overlap)
    self._copy_columns(old, new, tail, head)

  def _copy_columns(
    self, old: np.ndarray, new: np.ndarray, tail: slice, head: slice
  ) -> None:
    for a, source, b, target in self._column_pairs(old, new):
      for x, y in zip(a.steps, b.steps, strict=True):
        y[head, target] = x[tail, source]

  def _column_pairs(
    self, old: np.ndarray, new: np.ndarray
  ) -> Iterator[tuple[_Block, Any, _Block, Any]]:
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
      source = _as_slice(old_column[here])
      target = _as_slice(new_column[here])
      yield self._blocks[a], source, self._blocks[b], target

  def _complete(self, cells: np.ndarray) -> None:
    """Counts full columns, and hands over the blocks that have no other."""
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
    for block in list(self._blocks.values()):
      # Where no column is full, no unroll waits for the others.
      if block.overtaken >= block.patience and block.missing < self._width:
        self._move_stragglers(block)
    for block in complete:
      self._insert(block.storage)

  def _move_stragglers(self, block: _Block) -> None:
    """Moves a block's unfinished columns to where they hold up no unroll."""
    # Those that take the places have as long again, and then longer: however
    # slow they are, the block is complete one day.
    self._part_all()
    block.patience *= 2
    others = [b for b in self._blocks.values() if b.missing == self._width]
    stragglers = np.flatnonzero(self._cell // self._block_cells == block.serial)
    old = self._cell[stragglers]
    core = [x[old % self._width] for x in block.core]
    new = self._assign(stragglers, first_row=0, blocks=others)
    whole = slice(None)
    self._copy_columns(old, new, whole, whole)
    self._write_core(new, core)
    rows = (old % self._block_cells) // self._width
    self._cell[stragglers] = new + rows * self._width
    block.freed.extend((old % self._width).tolist())


def _are_apart(a: Any, b: slice) -> bool:
  """Whether two places surely have no environment in common."""
  return isinstance(a, slice) and (a.stop <= b.start or b.stop <= a.start)


def _as_slice(columns: np.ndarray) -> Any:
  """Returns consecutive indices as a slice: a plain copy, not a gather."""
  first, n = int(columns[0]), len(columns)
  if (columns == np.arange(first, first + n)).all():
    return slice(first, first + n)
  return columns
