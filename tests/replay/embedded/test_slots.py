"""Slot memory, the order of its unrolls, the sum tree and limited draws."""

import numpy as np
import pytest

from seedrl_jax.replay import blocks
from seedrl_jax.replay.embedded import slots


def test_too_much_memory_is_one_sentence(toy):
  layout = blocks.UnrollLayout(toy.spec())
  with pytest.raises(MemoryError, match=r'--config.replay.max_size.*GB'):
    slots.SlotStorage(layout, 1 << 55)


def test_oldest_skips_gaps_and_blocks_that_are_being_filled():
  rng = np.random.default_rng(0)
  index = slots.Slots(100, 0.0, 0, rng)
  expected: list[int] = []  # keys, oldest first
  filling = index.reserve(2)
  for _ in range(200):
    keys = index.reserve(2)
    # Published later than a block that was begun later.
    filling, published = keys, filling
    index.publish(published, np.ones(2))
    expected = sorted([*expected, *published.tolist()])
    gone = rng.choice(expected)
    index.remove(index.slots(np.array([gone], np.uint64)))
    expected.remove(gone)
    live = index.slots(np.array(expected, np.uint64))
    np.testing.assert_array_equal(index.live(), live)
    if len(expected) > 5:
      index.trim(len(expected) - 3)
      np.testing.assert_array_equal(index.live(), live[3:])
      expected = expected[3:]
    assert index.size == len(expected)


@pytest.mark.parametrize('size', [1, 2, 5, 1000])
def test_find_agrees_with_cumulative_sums(size):
  rng = np.random.default_rng(size)
  weights = np.zeros(size)
  tree = slots.SumTree(size)
  for _ in range(20):
    places = rng.integers(size, size=7)
    # Small integers: sums are exact in any order.
    values = rng.integers(0, 9, size=7).astype(float)
    tree.update(places, values)
    for place, value in zip(places, values, strict=True):
      weights[place] = value
    assert tree.total == weights.sum()
    np.testing.assert_array_equal(tree[np.arange(size)], weights)
    if weights.sum() == 0:
      continue
    # Boundaries belong to the next slot.
    edges = np.cumsum(weights)[:-1]
    edges = edges[edges < tree.total]
    mass = np.concatenate([rng.random(50) * weights.sum(), edges])
    expected = np.searchsorted(np.cumsum(weights), mass, side='right')
    np.testing.assert_array_equal(tree.find(mass), expected)


def test_rounding_never_finds_an_empty_slot():
  tree = slots.SumTree(6)
  tree.update(np.arange(3), np.array([0.1, 0.2, 0.3]))
  # The total and more: the worst that rounding can do.
  beyond = np.array([tree.total, tree.total * 1.1])
  np.testing.assert_array_equal(tree.find(beyond), [2, 2])


def test_no_drift_after_many_updates():
  tree = slots.SumTree(64)
  rng = np.random.default_rng(0)
  for _ in range(500):
    tree.update(rng.integers(64, size=16), rng.random(16) * 1e9)
  tree.update(np.arange(64), 0.0)
  assert tree.total == 0.0
