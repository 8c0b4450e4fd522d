"""The sum tree against plain sums, and draws under a sample limit."""

import numpy as np
import pytest

from seedrl_jax.replay.embedded import selector


def _selector(limit=0, exponent=1.0, size=8, seed=0):
  rng = np.random.default_rng(seed)
  return selector.Selector(size, exponent, limit, rng)


def test_occurrence_counts_earlier_equals():
  values = np.array([5, 2, 5, 5, 2, 9])
  np.testing.assert_array_equal(selector.occurrence(values), [0, 0, 1, 2, 1, 0])


def test_drawable_follows_adds_draws_and_removals():
  chosen = _selector(limit=3)
  chosen.add(np.array([0, 4]), np.ones(2), np.array([0, 2]))
  assert chosen.drawable == 4
  chosen.draw(2)
  assert chosen.drawable == 2
  chosen.remove(np.array([0, 4]))
  assert chosen.drawable == 0
  assert _selector(limit=0).drawable == np.inf


def test_limit_is_kept_within_one_batch():
  chosen = _selector(limit=2)
  chosen.add(np.arange(3), np.array([1000.0, 1.0, 0.0]))
  slots, probabilities = chosen.draw(6)
  np.testing.assert_array_equal(np.bincount(slots), [2, 2, 2])
  np.testing.assert_array_equal(chosen.exhausted(slots), [0, 1, 2])
  assert (probabilities > 0).all()


def test_limited_draws_are_as_one_by_one():
  # Two draws without replacement from weights 1, 2, 5.
  weights = np.array([1.0, 2.0, 5.0])
  expected = np.zeros((3, 3))
  for i in range(3):
    for j in range(3):
      if i != j:
        expected[i, j] = weights[i] / 8 * weights[j] / (8 - weights[i])
  chosen = _selector(limit=1, size=3)
  counts = np.zeros((3, 3))
  for _ in range(4000):
    chosen.add(np.arange(3), weights)
    slots, _ = chosen.draw(2)
    counts[tuple(slots)] += 1
    chosen.remove(np.arange(3))
  off = ~np.eye(3, dtype=bool)
  assert counts[~off].sum() == 0
  error = counts[off] - 4000 * expected[off]
  # 99.9th percentile of chi-square with 5 degrees of freedom.
  assert (error**2 / (4000 * expected[off])).sum() < 20.5


@pytest.mark.parametrize('exponent', [0.0, 2.0])
def test_probabilities_are_those_of_the_power(exponent):
  chosen = _selector(exponent=exponent)
  priorities = np.array([1.0, 3.0])
  chosen.add(np.array([6, 1]), priorities)
  slots, probabilities = chosen.draw(30)
  powers = {6: 1.0, 1: 3.0**exponent}
  expected = [powers[slot] / sum(powers.values()) for slot in slots.tolist()]
  np.testing.assert_allclose(probabilities, expected)


def test_absent_slots_are_not_drawn():
  chosen = _selector()
  chosen.add(np.arange(4), np.zeros(4))
  chosen.remove(np.array([1, 2]))
  slots, probabilities = chosen.draw(50)
  assert set(slots.tolist()) == {0, 3}
  np.testing.assert_array_equal(probabilities, np.full(50, 0.5))


@pytest.mark.parametrize('size', [1, 2, 5, 8, 1000])
def test_find_agrees_with_cumulative_sums(size):
  rng = np.random.default_rng(size)
  weights = np.zeros(size)
  tree = selector.SumTree(size)
  for _ in range(20):
    slots = rng.integers(size, size=7)
    # Small integers: sums are exact in any order.
    values = rng.integers(0, 9, size=7).astype(float)
    tree.update(slots, values)
    for slot, value in zip(slots, values, strict=True):
      weights[slot] = value
    assert tree.total == weights.sum()
    np.testing.assert_array_equal(tree[np.arange(size)], weights)
    if weights.sum() == 0:
      continue
    mass = rng.random(50) * weights.sum()
    expected = np.searchsorted(np.cumsum(weights), mass, side='right')
    np.testing.assert_array_equal(tree.find(mass), expected)


def test_boundaries_belong_to_the_next_slot():
  tree = selector.SumTree(4)
  tree.update(np.arange(4), np.array([1.0, 0.0, 2.0, 1.0]))
  found = tree.find(np.array([0.0, 0.999, 1.0, 2.999, 3.0, 3.999]))
  np.testing.assert_array_equal(found, [0, 0, 2, 2, 3, 3])


def test_rounding_never_finds_an_empty_slot():
  tree = selector.SumTree(6)
  tree.update(np.arange(3), np.array([0.1, 0.2, 0.3]))
  # The total and more: the worst that rounding can do.
  beyond = np.array([tree.total, tree.total * 1.1])
  np.testing.assert_array_equal(tree.find(beyond), [2, 2])


def test_no_drift_after_many_updates():
  tree = selector.SumTree(64)
  rng = np.random.default_rng(0)
  for _ in range(500):
    tree.update(rng.integers(64, size=16), rng.random(16) * 1e9)
  tree.update(np.arange(64), 1e-3)
  assert tree.total == pytest.approx(0.064, rel=1e-12)
  tree.update(np.arange(64), 0.0)
  assert tree.total == 0.0


def test_empty_batches():
  tree = selector.SumTree(3)
  empty = np.empty(0, np.int64)
  tree.update(empty, np.empty(0))
  assert tree.find(np.empty(0)).shape == (0,)
  assert tree.total == 0.0
