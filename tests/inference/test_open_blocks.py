"""Tests of columns and cells, on blocks of a single leaf."""

import chex
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.inference import open_blocks
from seedrl_jax.replay import base as replay

_LENGTH, _WIDTH = 3, 4
_BLOCK_CELLS = (_LENGTH + 1) * _WIDTH


def _new_block() -> replay.Block:
  # The one leaf of steps numbers its cells.
  numbers = np.arange(_BLOCK_CELLS).reshape(_LENGTH + 1, _WIDTH)
  unroll = types.Unroll(numbers, np.zeros((_WIDTH, 2)), np.zeros(_WIDTH, int))
  return replay.Block(unroll, list(unroll), _WIDTH)


def _make(num_envs: int = 4) -> open_blocks.OpenBlocks:
  return open_blocks.OpenBlocks(_new_block, num_envs, _LENGTH, _WIDTH)


def _assign(blocks: open_blocks.OpenBlocks, n: int, row: int = 0) -> np.ndarray:
  return blocks.assign(np.arange(n), row)


def _block_of(
  blocks: open_blocks.OpenBlocks, cell: int
) -> open_blocks.OpenBlock:
  (run,), _ = blocks.parts(np.array([cell]))
  return run.block


def test_columns_are_given_in_order_and_blocks_opened_as_needed():
  blocks = _make()
  assert _assign(blocks, 3).tolist() == [0, 1, 2]
  assert len(blocks) == 1
  second = _BLOCK_CELLS + 2 * _WIDTH
  assert _assign(blocks, 2, row=2).tolist() == [3 + 2 * _WIDTH, second]
  assert len(blocks) == 2
  assert not len(_assign(blocks, 0)) and len(blocks) == 2


def test_columns_that_came_back_are_given_first():
  blocks = _make()
  cells = _assign(blocks, 6)
  blocks.free(cells[[2, 4, 0]] + _WIDTH)
  assert sorted(_assign(blocks, 2).tolist()) == [0, 2]
  assert _assign(blocks, 2).tolist() == [_BLOCK_CELLS, _BLOCK_CELLS + 2]


def test_environments_are_recorded_with_their_columns():
  blocks = _make()
  cells = blocks.assign(np.array([70, 50, 60, 40, 90]), 1)
  ids = [_block_of(blocks, c).storage.unroll.env_id for c in cells[[0, 4]]]
  assert ids[0].tolist() == [70, 50, 60, 40] and ids[1][0] == 90


def test_cells_side_by_side_are_one_slice_of_one_row():
  blocks = _make()
  cells = _assign(blocks, 4) + 2 * _WIDTH
  (run,), row = blocks.parts(cells[1:3])
  assert (row, run.source, run.target) == (2, None, slice(9, 11))


@pytest.mark.parametrize(
  'cells',
  [
    # Consecutive, but the second is the next row's first column.
    [_WIDTH - 1, _WIDTH],
    [1, 0],
    [0, 2],
    [0, 1 + _WIDTH],
    # The last of one block and the first of the next; three blocks.
    [_BLOCK_CELLS - 1, _BLOCK_CELLS],
    [_BLOCK_CELLS + 5, 3, 2 * _BLOCK_CELLS + 1, 7, _BLOCK_CELLS],
  ],
)
def test_runs_of_scattered_cells_hold_all_of_them(cells: list[int]):
  blocks = _make()
  _assign(blocks, 3 * _WIDTH)
  runs, rows = blocks.parts(np.array(cells))
  found = np.full(len(cells), -1)
  for run in runs:
    source = slice(None) if run.source is None else run.source
    # The leaf numbers the cells of its block.
    found[source] = (
      run.block.serial * _BLOCK_CELLS + run.block.flat[0][run.target]
    )
  assert found.tolist() == cells
  expected = np.array(cells) % _BLOCK_CELLS // _WIDTH
  chex.assert_trees_all_equal(rows, expected)
  chex.assert_trees_all_equal(blocks.rows(np.array(cells)), expected)
  assert len(runs) == len({c // _BLOCK_CELLS for c in cells})


def test_in_block_tells_cells_of_one_block_and_of_none():
  blocks = _make()
  cells = _assign(blocks, 6)
  block = _block_of(blocks, cells[5])
  asked = np.array([-1, cells[0], cells[5], cells[4] + 3 * _WIDTH])
  assert blocks.in_block(asked, block).tolist() == [False, False, True, True]


@pytest.mark.parametrize('overlap', [1, 2, 3])
@pytest.mark.parametrize('scattered', [False, True])
def test_overlap_is_copied_column_by_column(overlap: int, scattered: bool):
  blocks = _make()
  old, new = _assign(blocks, _WIDTH), _assign(blocks, 2 * _WIDTH)[:_WIDTH]
  if scattered:
    old = np.array([0, _BLOCK_CELLS + 2, 3, _BLOCK_CELLS + 1])
    new = 2 * _BLOCK_CELLS + np.array([3, 0, 1, 2])
  # Different values in every block.
  leaves = {s: _block_of(blocks, s * _BLOCK_CELLS).steps[0] for s in range(3)}
  for serial, leaf in leaves.items():
    leaf += 100 * serial
  expected = {serial: leaf.copy() for serial, leaf in leaves.items()}
  for a, b in zip(old.tolist(), new.tolist(), strict=True):
    source = leaves[a // _BLOCK_CELLS][_LENGTH + 1 - overlap :, a % _WIDTH]
    expected[b // _BLOCK_CELLS][:overlap, b % _WIDTH] = source
  # Any cell of a column names it.
  blocks.copy_overlap(old + _LENGTH * _WIDTH, new + overlap * _WIDTH, overlap)
  chex.assert_trees_all_equal(leaves, expected)


def test_core_states_go_to_the_columns_of_cells():
  blocks = _make()
  _assign(blocks, 2 * _WIDTH)
  cells = np.array([_BLOCK_CELLS + 2, 3 + _WIDTH, 1])
  core = np.arange(6.0).reshape(3, 2) + 1
  blocks.write_core(cells, [core])
  first, second = (_block_of(blocks, c).core[0] for c in (0, _BLOCK_CELLS))
  assert first.tolist() == [[0, 0], [5, 6], [0, 0], [3, 4]]
  assert second.tolist() == [[0, 0], [0, 0], [1, 2], [0, 0]]


def test_block_is_complete_when_its_last_column_is():
  blocks = _make()
  cells = _assign(blocks, 2 * _WIDTH)
  assert blocks.take_complete(cells[1:4]) == []
  (block,) = blocks.take_complete(cells[[5, 0]])
  assert block.serial == 0 and len(blocks) == 1
  (block,) = blocks.take_complete(cells[[4, 7, 6]])
  assert block.serial == 1 and not len(blocks)


def _hold_up(blocks: open_blocks.OpenBlocks, times: int) -> None:
  """Completes younger blocks in turn; no column may be free."""
  for _ in range(times):
    (complete,) = blocks.take_complete(_assign(blocks, _WIDTH))
    assert complete.serial > 0


def test_block_is_overdue_when_enough_younger_ones_were_faster():
  blocks = _make(num_envs=5)
  cells = _assign(blocks, _WIDTH)
  # Two blocks hold five environments; twice as many is overdue.
  _hold_up(blocks, 4)
  assert blocks.overdue() == []  # None of its unrolls waits.
  blocks.take_complete(cells[:1])
  (block,) = blocks.overdue()
  assert block.serial == 0
  blocks.move(block, cells[1:])
  assert blocks.overdue() == []
  # Others take the three freed columns, and one in the next block.
  _assign(blocks, 4)
  _hold_up(blocks, 3)
  assert blocks.overdue() == []
  _hold_up(blocks, 1)
  # The next environments in it have twice the patience.
  assert blocks.overdue() == [block]


def test_moved_columns_keep_their_steps_core_and_environment():
  blocks = _make()
  cells = blocks.assign(np.array([9, 8, 7, 6]), 0)
  _hold_up(blocks, 2)
  blocks.take_complete(cells[:1])
  (block,) = blocks.overdue()
  block.steps[0] += 100
  blocks.write_core(cells, [np.arange(8.0).reshape(4, 2)])
  stragglers = np.array([3 + 2 * _WIDTH, 1 + _WIDTH])
  moved = blocks.move(block, stragglers)
  other = _block_of(blocks, int(moved[0]))
  assert other is not block
  chex.assert_trees_all_equal(blocks.rows(moved), np.array([2, 1]))
  columns = moved % _WIDTH
  steps = block.steps[0][:, [3, 1]]
  chex.assert_trees_all_equal(other.steps[0][:, columns], steps)
  assert other.core[0][columns].tolist() == [[6, 7], [2, 3]]
  assert other.storage.unroll.env_id[columns].tolist() == [6, 8]
  # Their old columns are free.
  assert sorted(_assign(blocks, 2).tolist()) == [1, 3]
