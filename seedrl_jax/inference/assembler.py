"""Assembles unrolls on the host, in place, from batches of single steps.

The store provides blocks of W columns, `[T + 1, W, ...]`, as for training. Each
environment owns one column at a time. A batch is written with one slice
assignment for each array if its environments are side by side at the same step,
else with one indexed assignment for each array and block.
"""

import dataclasses
from typing import Any, NamedTuple, Protocol

import numpy as np

from seedrl_jax.inference import open_blocks
from seedrl_jax.replay import base as replay

_NO_CELL = -1


class BlockSink(Protocol):
  """Provides blocks and receives them full; see `insertion.Insertion`."""

  def allocate(self) -> replay.Block: ...

  def __call__(self, block: replay.Block) -> None: ...

  @property
  def waited(self) -> float: ...


@dataclasses.dataclass(eq=False, slots=True)
class BatchedEnvs:
  """A batch of environments that may come again.

  Caches their position if they are side by side at the same step; their cells
  then lag behind. Cells are updated before anything else reads them; the
  position is dropped before anything else changes them.

  Attributes:
    env_id: int `[n]`, the stream's ids, unique.
    index: the same, as a slice if they are consecutive.
    block: None if no position is cached.
    row: of the next step.
    start: the next step's place in the flat block.
    lag: steps by which the cells are behind.
  """

  env_id: np.ndarray
  index: slice | np.ndarray
  block: open_blocks.OpenBlock | None = None
  row: int = 0
  start: int = 0
  lag: int = 0


class Placement(NamedTuple):
  """Where one batch goes; `begin` makes it and `finish` consumes it.

  Attributes:
    core_rows: int `[m]`, rows of the batch at which unrolls start.
    full: bool `[n]` or bool, whose unroll this step completes.
  """

  group: BatchedEnvs
  core_rows: np.ndarray
  parts: tuple[open_blocks.BlockPart, ...]
  full: np.ndarray | bool


class UnrollAssembler:
  """Turns `[B]` steps, in any order of environments, into blocks of unrolls."""

  def __init__(
    self,
    sink: BlockSink,
    global_env_id: np.ndarray,
    num_transitions: int,
    overlap: int,
    block_width: int,
  ):
    """Starts without unrolls.

    Args:
      sink: provides and receives blocks of W = `block_width` columns.
      global_env_id: int `[N]`, run-wide ids of the training environments.
      num_transitions: T; an unroll has T + 1 steps.
      overlap: steps that consecutive unrolls of an environment share.

    Raises:
      ValueError: if `overlap` is not in 1..T.
    """
    if not 1 <= overlap <= num_transitions:
      raise ValueError(
        f'Unrolls of {num_transitions} + 1 steps cannot overlap by {overlap}; '
        'raise --config.unroll_length.'
      )
    self.num_envs = num_envs = len(global_env_id)
    self._sink = sink
    self._global_env_id = np.asarray(global_env_id, np.int32)
    self._length = num_transitions
    self._overlap = overlap
    self._stride = num_transitions + 1 - overlap  # new steps of an unroll
    self._width = block_width
    self._blocks = open_blocks.OpenBlocks(
      sink.allocate, num_envs, num_transitions, block_width
    )
    self._pending = PendingCore(num_envs, num_transitions // self._stride)
    # Cell of each environment's next step; see `open_blocks`.
    self._cell = np.full(num_envs, _NO_CELL, np.int64)
    self._num_idle = num_envs  # environments without a column
    self._cached: list[BatchedEnvs] = []  # those whose position is
    self._ramp = np.arange(num_envs)

  @property
  def waited(self) -> float:
    """Seconds that the store blocked inserts (back pressure)."""
    return self._sink.waited

  def begin(self, group: BatchedEnvs) -> Placement:
    """Finds the places of a batch of at least one environment."""
    row: Any
    parts: tuple[open_blocks.BlockPart, ...]
    if group.block is not None:
      target = slice(group.start, group.start + len(group.env_id))
      parts = (open_blocks.BlockPart(group.block, None, target),)
      row = group.row
    else:
      parts, row = self._find(group)
    full = row == self._length
    snapshot = row % self._stride == 0
    if isinstance(snapshot, np.ndarray):
      core_rows = np.flatnonzero(snapshot)
    else:
      core_rows = self._ramp[: len(group.env_id) if snapshot else 0]
    return Placement(group, core_rows, parts, full)

  def write(self, placement: Placement, leaves: list[Any]) -> None:
    """Writes `types.Steps` leaves: arrays `[n, ...]`, or scalars for all."""
    for part in placement.parts:
      for array, leaf in zip(part.block.flat, leaves, strict=True):
        if part.source is not None and isinstance(leaf, np.ndarray):
          leaf = leaf[part.source]
        array[part.target] = leaf

  def finish(self, placement: Placement, core: list[np.ndarray]) -> None:
    """Advances a written batch and hands over full blocks.

    `core` has leaves `[m, ...]`, the rows `placement.core_rows` of the core
    state before the step; it is empty if the agent has none.
    """
    group, env_id = placement.group, placement.group.env_id
    if core:
      self._write_back()
      self._keep_core(env_id[placement.core_rows], core)
    full = placement.full
    if isinstance(full, np.ndarray):
      done = env_id[full] if full.any() else None
    else:
      done = env_id if full else None
    if done is not None:
      self._write_back()
      self._drop_position(group)
      old_cells = self._cell[done]
      self._cell[env_id] += self._width
      self._start_unrolls(done, old_cells)
      self._complete(old_cells)
    elif group.block is None:
      self._cell[group.index] += self._width
    else:
      group.row += 1
      group.start += self._width
      group.lag += 1

  def reset(self, env_id: np.ndarray) -> None:
    """Drops unfinished unrolls of disconnected environments, int `[n]`."""
    self._write_back()
    self._drop_positions()
    cells = self._cell[env_id]
    self._cell[env_id] = _NO_CELL
    cells = cells[cells != _NO_CELL]
    self._num_idle += len(cells)
    self._blocks.free(cells)

  def _find(
    self, group: BatchedEnvs
  ) -> tuple[tuple[open_blocks.BlockPart, ...], Any]:
    """Finds a group by its cells; returns what `OpenBlocks.parts` does."""
    index = group.index
    for other in list(self._cached):
      if not _are_disjoint(index, other.index):
        self._write_back()
        self._drop_position(other)
    cells = self._cell[index]
    if self._num_idle:
      idle = cells == _NO_CELL
      self._num_idle -= int(np.count_nonzero(idle))
      global_env_id = self._global_env_id[group.env_id[idle]]
      cells[idle] = self._blocks.assign(global_env_id, 0)
      self._cell[index] = cells
    parts, row = self._blocks.parts(cells)
    if isinstance(row, int) and isinstance(index, slice):
      group.block = parts[0].block
      group.row = row
      group.start = parts[0].target.start
      self._cached.append(group)
    return parts, row

  def _write_back(self) -> None:
    """Updates the cells of all cached groups."""
    for group in self._cached:
      self._cell[group.index] += group.lag * self._width
      group.lag = 0

  def _drop_position(self, group: BatchedEnvs) -> None:
    """Drops a position that is written back, before its cells change."""
    if group.block is not None:
      group.block = None
      self._cached.remove(group)

  def _drop_positions(self) -> None:
    for group in list(self._cached):
      self._drop_position(group)

  def _keep_core(self, env_id: np.ndarray, core: list[np.ndarray]) -> None:
    """Stores core states for later unrolls, or for ones that start now."""
    cells = self._cell[env_id]
    ahead = self._blocks.rows(cells) // self._stride
    self._pending.keep(env_id, ahead, core)
    starting = ahead == 0
    if starting.any():
      self._blocks.write_core(cells[starting], [x[starting] for x in core])

  def _start_unrolls(self, env_id: np.ndarray, old_cells: np.ndarray) -> None:
    """Assigns environments their next columns and copies what they share."""
    cells = self._blocks.assign(self._global_env_id[env_id], self._overlap)
    self._cell[env_id] = cells
    core = self._pending.advance(env_id)
    if core:
      self._blocks.write_core(cells, core)
    self._blocks.copy_overlap(old_cells, cells, self._overlap)

  def _complete(self, cells: np.ndarray) -> None:
    """Counts full columns, hands over full blocks and moves stragglers."""
    complete = self._blocks.take_complete(cells)
    for block in self._blocks.overdue():
      self._drop_positions()
      stragglers = np.flatnonzero(self._blocks.in_block(self._cell, block))
      cells = self._cell[stragglers]
      self._cell[stragglers] = self._blocks.move(block, cells)
    for block in complete:
      self._sink(block.storage)


class PendingCore:
  """Initial core states of unrolls that have no column yet.

  Up to `depth` unrolls of an environment begin before one is full: one, or more
  if they overlap by more than half.
  """

  def __init__(self, num_envs: int, depth: int):
    self._depth = depth
    # Leaves [num_envs, depth, ...]; made when the first states arrive.
    self._states: list[np.ndarray] = []
    # Each environment's unroll number, modulo the depth.
    self._turn = np.zeros(num_envs, np.int64)

  def keep(
    self, env_id: np.ndarray, ahead: np.ndarray, core: list[np.ndarray]
  ) -> None:
    """Stores core states, leaves `[n, ...]`, of environments, int `[n]`.

    `ahead`, int `[n]` in `[0, depth]`, says for which unroll: 1 is the next
    one; 0, the current one, is never returned.
    """
    if not self._states:
      shape = (len(self._turn), self._depth)
      self._states = [np.zeros((*shape, *x.shape[1:]), x.dtype) for x in core]
    turn = (self._turn[env_id] + ahead) % self._depth
    for states, x in zip(self._states, core, strict=True):
      states[env_id, turn] = x

  def advance(self, env_id: np.ndarray) -> list[np.ndarray]:
    """Moves environments, int `[n]`, on to their next unrolls.

    Returns their core states, leaves `[n, ...]`; empty if none were stored.
    """
    if not self._states:
      return []
    turn = (self._turn[env_id] + 1) % self._depth
    self._turn[env_id] = turn
    return [states[env_id, turn] for states in self._states]


def _are_disjoint(a: slice | np.ndarray, b: slice | np.ndarray) -> bool:
  """Returns whether two groups surely have no environment in common."""
  if not (isinstance(a, slice) and isinstance(b, slice)):
    return False
  return a.stop <= b.start or b.stop <= a.start
