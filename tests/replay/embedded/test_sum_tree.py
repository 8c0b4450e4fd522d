"""The sum tree against plain cumulative sums."""

import numpy as np
import pytest

from seedrl_jax.replay.embedded import sum_tree


@pytest.mark.parametrize('size', [1, 2, 5, 8, 1000])
def test_find_agrees_with_cumulative_sums(size):
  rng = np.random.default_rng(size)
  weights = np.zeros(size)
  tree = sum_tree.SumTree(size)
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
  tree = sum_tree.SumTree(4)
  tree.update(np.arange(4), np.array([1.0, 0.0, 2.0, 1.0]))
  found = tree.find(np.array([0.0, 0.999, 1.0, 2.999, 3.0, 3.999]))
  np.testing.assert_array_equal(found, [0, 0, 2, 2, 3, 3])


def test_rounding_never_finds_an_empty_slot():
  tree = sum_tree.SumTree(6)
  tree.update(np.arange(3), np.array([0.1, 0.2, 0.3]))
  # As much as all of it, and more: what rounding could do at worst.
  beyond = np.array([tree.total, tree.total * 1.1])
  np.testing.assert_array_equal(tree.find(beyond), [2, 2])


def test_no_drift_after_many_updates():
  tree = sum_tree.SumTree(64)
  rng = np.random.default_rng(0)
  for _ in range(500):
    tree.update(rng.integers(64, size=16), rng.random(16) * 1e9)
  tree.update(np.arange(64), 1e-3)
  assert tree.total == pytest.approx(0.064, rel=1e-12)
  tree.update(np.arange(64), 0.0)
  assert tree.total == 0.0


def test_empty_batches():
  tree = sum_tree.SumTree(3)
  empty = np.empty(0, np.int64)
  tree.update(empty, np.empty(0))
  assert tree.find(np.empty(0)).shape == (0,)
  assert tree.total == 0.0
