"""Tests of unroll assembly against the reference in `assembly`."""

import chex
import numpy as np
import pytest

from tests.inference import assembly


def _random_batch(rng: np.random.Generator, speed: np.ndarray) -> np.ndarray:
  """Returns random environments in random order, fast ones more often."""
  ids = np.flatnonzero(rng.random(len(speed)) < speed)
  if not len(ids):
    return rng.integers(0, len(speed), 1)
  order = rng.integers(3)
  if order == 0:
    return ids
  return rng.permutation(ids) if order == 1 else ids[::-1]


@pytest.mark.parametrize('seed', range(80))
def test_random_sequences_equal_the_reference(seed: int):
  rng = np.random.default_rng(seed)
  num_envs, width, length = (int(rng.integers(1, n)) for n in (10, 7, 7))
  overlap = int(rng.choice([1, rng.integers(1, length + 1), length]))
  bed = assembly.Bed(
    num_envs, length, overlap, width, has_core=seed % 4 != 0, seed=seed
  )
  # From equal speeds to differences of a factor of hundreds.
  speed = rng.random(num_envs) ** rng.integers(0, 8)
  reset_rate = rng.choice([0.0, 0.02, 0.2])
  for _ in range(80):
    if rng.random() < reset_rate:
      size = rng.integers(1, num_envs + 1)
      bed.reset(rng.permutation(num_envs)[:size])
    bed.step(_random_batch(rng, speed))
  bed.drain()
  bed.check_untouched()
  # Each open block holds an unfinished column, and a new one opens only if no
  # column is free; stragglers open one more.
  assert bed.most_open <= num_envs + num_envs // width + 2


@pytest.mark.parametrize('overlap', [1, 2, 3, 4])
@pytest.mark.parametrize('width', [1, 2, 4, 8])
def test_environments_in_step_lose_nothing_and_open_few_blocks(
  overlap: int, width: int
):
  bed = assembly.Bed(4, length=4, overlap=overlap, width=width)
  for _ in range(40):
    bed.step(np.arange(4))
    # Only what shares a block with unfinished unrolls is missing.
    assert len(bed.missing) < width
  assert bed.most_open <= -(-4 // width) + 1
  stride = 5 - overlap
  starts = [k.start for k in bed.due if k.env == 2]
  assert starts == list(range(0, 40 - 4, stride))
  bed.check_untouched()


def test_order_of_a_batch_changes_no_unroll():
  straight, turned = (assembly.Bed(6, length=3, width=3) for _ in '12')
  rng = np.random.default_rng(0)
  for _ in range(24):
    straight.step(np.arange(6))
    turned.step(rng.permutation(6))
  assert not straight.missing and not turned.missing
  # Each bed draws its own values, but the keys agree.
  assert set(straight.inserted) == set(turned.inserted)


def test_neighbours_in_step_are_written_by_one_slice():
  bed = assembly.Bed(6, length=3, width=6)
  for t in range(12):
    ids = np.arange(3) + 3 * (t % 2)
    (run,) = bed.step(ids).parts
    assert isinstance(run.target, slice)
    assert run.target.stop - run.target.start == 3


def test_core_states_are_asked_for_only_where_an_unroll_starts():
  bed = assembly.Bed(3, length=4, overlap=2, width=3)
  asked = [bed.step([2, 0, 1]).core_rows.tolist() for _ in range(10)]
  starts = [t for t, rows in enumerate(asked) if rows]
  assert starts == [0, 3, 6, 9]
  assert all(rows in ([], [0, 1, 2]) for rows in asked)


def test_core_states_of_environments_out_of_step():
  bed = assembly.Bed(3, length=3, width=3)
  bed.step([1])
  # Environments 2 and 0 start; 1, between them, does not.
  assert bed.step([2, 1, 0]).core_rows.tolist() == [0, 2]
  bed.step([0, 1, 2])
  # Environment 1 is at its last step, where its next unroll starts.
  assert bed.step([0, 2, 1]).core_rows.tolist() == [2]


def _most_delay(bed: assembly.Bed) -> int:
  """Returns for how many batches the oldest missing unroll is due."""
  return bed.batches - min(bed.missing.values(), default=bed.batches)


@pytest.mark.parametrize(
  ('num_envs', 'slow'),
  [
    (6, [5]),
    (6, [0]),
    (16, [3, 7]),
    # One in each of the first four blocks.
    (16, [0, 4, 8, 12]),
    (16, [0, 1, 2, 5, 6, 11]),
  ],
)
@pytest.mark.parametrize('overlap', [1, 3])
def test_stragglers_do_not_hold_up_the_unrolls_beside_them(
  num_envs: int, slow: list[int], overlap: int
):
  bed = assembly.Bed(num_envs, length=4, overlap=overlap, width=4)
  everyone = np.arange(num_envs)
  fast = np.setdiff1d(everyone, slow)
  # They stop in the middle of their first unroll.
  for _ in range(3):
    bed.step(everyone)
  stride = 5 - overlap
  for _ in range(30 * stride):
    bed.step(fast)
    assert _most_delay(bed) <= 7 * stride
  assert bed.most_open <= num_envs // 4 + len(slow) + 3
  # Their steps from before the stop are kept.
  for _ in range(12):
    bed.step(slow)
  bed.drain()
  assert {assembly.Key(env, 0, 0) for env in slow} <= set(bed.inserted)
  bed.check_untouched()


def test_very_slow_environment_is_never_starved_of_its_unroll():
  bed = assembly.Bed(5, length=3, overlap=2, width=2)
  for _ in range(12):
    for _ in range(20):
      bed.step([0, 1, 3, 4])
    bed.step([2])
  assert [k.start for k in bed.due if k.env == 2] == list(range(0, 9, 2))
  bed.drain()


@pytest.mark.parametrize(('late', 'pause'), [(0, 7), (15, 11)])
def test_environment_that_is_a_little_late_stays_where_it_is(
  late: int, pause: int
):
  bed = assembly.Bed(16, length=4, width=2)
  everyone = np.arange(16)
  for _ in range(3):
    bed.step(everyone)
  # The others fill 14 younger blocks: less than twice all eight.
  for _ in range(pause):
    bed.step(np.delete(everyone, late))
  for _ in range(2):
    bed.step([late])
  block = late // 2
  neighbours = [2 * block, 2 * block + 1]
  steps = bed.allocated[block].unroll.steps
  tags = steps.observation['tag'][:, :, 0]
  chex.assert_trees_all_equal(tags, np.tile(neighbours, (5, 1)))
  assert {assembly.Key(env, 0, 0) for env in neighbours} <= set(bed.inserted)


def test_block_whose_places_slow_environments_take_again_is_completed():
  bed = assembly.Bed(2, length=3, width=2)
  # The slow environment finishes its unroll and takes the oldest free place,
  # from which it has just been moved.
  for _ in range(6):
    for _ in range(3 * 6):
      bed.step([0])
    for _ in range(3):
      bed.step([1])
  assert assembly.Key(0, 0, 0) in bed.inserted


def test_block_that_holds_nothing_up_stays_where_it_is():
  bed = assembly.Bed(6, length=4, width=2)
  for _ in range(3):
    bed.step(np.arange(6))
  for _ in range(60):
    bed.step([2, 3, 4, 5])
  for _ in range(2):
    bed.step([0, 1])
  steps = bed.allocated[0].unroll.steps
  tags = steps.observation['tag'][:, :, 0]
  chex.assert_trees_all_equal(tags, np.tile(np.array([0, 1]), (5, 1)))
  assert assembly.Key(0, 0, 0) in bed.inserted


def test_reset_drops_half_an_unroll_and_frees_its_column():
  bed = assembly.Bed(2, length=3, width=2)
  for _ in range(3):
    bed.step([0, 1])
  bed.reset([1])
  bed.step([0])
  assert not bed.inserted
  # Environment 0's next unroll takes the free column.
  for _ in range(3):
    bed.step([0])
  keys = {assembly.Key(0, 0, 0), assembly.Key(0, 0, 3)}
  assert set(bed.inserted) == keys
  assert len(bed.allocated) == 2


def test_reset_of_environments_without_an_unroll_is_no_error():
  bed = assembly.Bed(3, length=2, width=3)
  bed.reset([0, 2])
  bed.step([0, 1, 2])
  bed.reset([1])
  bed.reset([1])
  for _ in range(8):
    bed.step([1, 2, 0])
  bed.drain()


def test_environments_that_come_and_go_take_no_memory():
  bed = assembly.Bed(4, length=5, width=2)
  for t in range(100):
    bed.step(np.arange(4))
    bed.reset([t % 4, (t + 1) % 4])
  assert len(bed.allocated) <= 4
  bed.drain()


def test_all_environments_reset_at_once_start_afresh():
  bed = assembly.Bed(4, length=3, width=4)
  for _ in range(2):
    bed.step(np.arange(4))
  bed.reset(np.arange(4))
  assert bed.step([3, 1, 0, 2]).core_rows.tolist() == [0, 1, 2, 3]
  for _ in range(3):
    bed.step([3, 1, 0, 2])
  assert {k.life for k in bed.inserted} == {1}
  assert len(bed.allocated) == 2


@pytest.mark.parametrize(('length', 'overlap'), [(3, 0), (3, 4), (1, 2)])
def test_overlap_that_leaves_no_new_step_is_refused(length: int, overlap: int):
  with pytest.raises(ValueError, match=f'cannot overlap by {overlap}'):
    assembly.Bed(2, length, overlap)


def test_exception_of_the_store_is_passed_on():
  def insert(block: object) -> None:
    raise RuntimeError('closed')

  bed = assembly.Bed(1, length=1, width=1)
  bed.sink.insert = insert
  bed.step([0])
  with pytest.raises(RuntimeError, match='closed'):
    bed.step([0])
