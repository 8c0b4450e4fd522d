"""Tests of the assembler's position cache for groups of environments."""

from collections.abc import Iterator

import numpy as np
import pytest

from seedrl_jax.inference import assembler as assembler_lib
from tests.inference import assembly


def _count_searches(
  monkeypatch: pytest.MonkeyPatch, bed: assembly.Bed
) -> list[None]:
  """Returns a list that grows with each search for a batch's cells."""
  searches: list[None] = []
  find = bed.assembler._find

  def spy(group: assembler_lib.BatchedEnvs) -> object:
    searches.append(None)
    return find(group)

  monkeypatch.setattr(bed.assembler, '_find', spy)
  return searches


def _partitions(
  rng: np.random.Generator, num_envs: int
) -> Iterator[list[np.ndarray]]:
  """Yields ways to cut all environments into consecutive groups."""
  while True:
    count = rng.integers(0, min(4, num_envs))
    cuts = 1 + rng.permutation(num_envs - 1)[:count]
    yield np.split(np.arange(num_envs), np.sort(cuts))


def _any_batch(rng: np.random.Generator, num_envs: int) -> np.ndarray:
  ids = rng.permutation(num_envs)[: rng.integers(1, num_envs + 1)]
  return np.sort(ids) if rng.random() < 0.5 else ids


def _run_at_random(seed: int, monkeypatch: pytest.MonkeyPatch) -> float:
  """Mixes groups and others; returns the share of batches searched for."""
  rng = np.random.default_rng(seed)
  num_envs, width, length = (int(rng.integers(3, n)) for n in (12, 13, 9))
  overlap = int(rng.integers(1, length))
  bed = assembly.Bed(
    num_envs, length, overlap, width, has_core=seed % 3 != 0, seed=seed
  )
  searches = _count_searches(monkeypatch, bed)
  partitions = _partitions(rng, num_envs)
  # Few, so that groups recur after those of another partition.
  layouts = [next(partitions) for _ in range(3)]
  for _ in range(14):
    groups = layouts[rng.integers(len(layouts))]
    # In turn, or some more often than the others.
    chosen = [g for g in groups if rng.random() < 0.8] or groups
    for _ in range(rng.integers(1, 2 * length)):
      for group in chosen:
        bed.step(group)
    kind = rng.integers(4)
    if kind == 0:
      bed.reset(_any_batch(rng, num_envs))
    elif kind == 1:
      bed.step(_any_batch(rng, num_envs))
    elif kind == 2:
      # All are in step again.
      bed.reset(np.arange(num_envs))
  share = len(searches) / bed.batches
  bed.drain()
  bed.check_untouched()
  return share


@pytest.mark.parametrize('seed', range(0, 40, 10))
def test_repeating_batches_among_others_equal_the_reference(
  seed: int, monkeypatch: pytest.MonkeyPatch
):
  shares = [_run_at_random(seed + i, monkeypatch) for i in range(10)]
  # The cache is used, and often invalidated.
  assert 0.3 < np.mean(shares) < 0.8


def test_group_is_searched_once_an_unroll(monkeypatch: pytest.MonkeyPatch):
  bed = assembly.Bed(6, length=4, width=6)
  searches = _count_searches(monkeypatch, bed)
  for _ in range(21):
    bed.step([0, 1, 2])
    bed.step([3, 4, 5])
  # Steps 0, 5, 9, 13 and 17, each after an unroll's last one.
  assert len(searches) == 2 * 5
  assert not bed.missing


@pytest.mark.parametrize('has_core', [True, False])
def test_groups_that_overlap_follow_one_another(has_core: bool):
  bed = assembly.Bed(6, length=4, overlap=2, width=6, has_core=has_core)
  for _ in range(5):
    bed.step(np.arange(6))
    # In step, so both are cached, one after the other.
    for ids in ([0, 1, 2, 3], [4, 5], [2, 3, 4, 5], [0, 1]):
      bed.step(ids)
      bed.step(ids)
  bed.drain()


@pytest.mark.parametrize('others', [[5, 0, 3], [1], [0, 2, 4]])
def test_index_arrays_break_in_on_groups(others: list[int]):
  bed = assembly.Bed(6, length=5, width=3)
  for _ in range(8):
    bed.step([0, 1, 2])
    bed.step([3, 4, 5])
    bed.step([0, 1, 2])
    bed.step(others)
  bed.drain()


@pytest.mark.parametrize('gone', [[1], [2, 0], [0, 1, 2], [1, 4]])
@pytest.mark.parametrize('steps', [1, 3, 5])
def test_reset_in_mid_unroll_of_a_group(gone: list[int], steps: int):
  bed = assembly.Bed(6, length=5, overlap=2, width=6)
  groups = [0, 1, 2], [3, 4, 5]
  for _ in range(3):
    for _ in range(steps):
      for group in groups:
        bed.step(group)
    bed.reset(gone)
  for _ in range(6):
    bed.step(np.arange(6))
  bed.drain()
  lives = {key.life for key in bed.inserted if key.env in gone}
  assert 3 in lives
  assert {k.life for k in bed.inserted if k.env not in gone} == {0}


@pytest.mark.parametrize('steps', [1, 2, 3])
def test_stragglers_are_moved_while_they_stand_side_by_side(steps: int):
  bed = assembly.Bed(6, length=4, width=4)
  fast, slow, beside = [0, 1], [2, 3], [4, 5]
  for _ in range(steps):
    for group in (fast, slow, beside):
      bed.step(group)
  # `slow` holds up the first block, which it shares with `fast`; `beside`
  # leaves its block half full and holds nothing up.
  for _ in range(60):
    bed.step(fast)
  assert assembly.Key(0, 0, 0) in bed.inserted
  for _ in range(5 - steps):
    for group in (beside, slow):
      bed.step(group)
  bed.drain()
  firsts = {assembly.Key(env, 0, 0) for env in (*slow, *beside)}
  assert firsts <= set(bed.inserted)
  bed.check_untouched()


def test_more_batches_than_are_remembered():
  bed = assembly.Bed(14, length=3, width=14)
  # All 105 consecutive groups, twice; each start matches the cells.
  ranges = [np.arange(a, b) for a in range(14) for b in range(a + 1, 15)]
  rng = np.random.default_rng(0)
  for i in np.concatenate([rng.permutation(len(ranges)) for _ in '12']):
    bed.step(ranges[i])
    bed.step(ranges[i])
  bed.drain()
