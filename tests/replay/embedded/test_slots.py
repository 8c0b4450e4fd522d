"""Slot memory and the index of its unrolls."""

import numpy as np
import pytest

from seedrl_jax.replay import blocks
from seedrl_jax.replay.embedded import slots


def test_storage_scatters_and_gathers(toy):
  layout = blocks.UnrollLayout(toy.spec())
  storage = slots.SlotStorage(layout, 6)
  block = layout.new_block(2)
  for start, places in ((0, [5, 1]), (2, [0, 4])):
    toy.fill(block, [start, start + 1])
    storage.put(np.array(places), block)
  gathered = layout.new_block(3)
  storage.get(np.array([4, 5, 4]), gathered)
  np.testing.assert_array_equal(gathered.unroll.env_id, [3, 0, 3])
  np.testing.assert_array_equal(gathered.unroll.steps.reward, [[3, 0, 3]] * 3)


def test_too_much_memory_is_one_sentence(toy):
  layout = blocks.UnrollLayout(toy.spec())
  with pytest.raises(MemoryError, match=r'--config.replay.max_size.*GB'):
    slots.SlotStorage(layout, 1 << 55)


def test_too_many_slots_are_refused():
  with pytest.raises(ValueError, match='at most'):
    slots.SlotIndex(1 << 28)


def _published(index, n):
  taken = index.reserve(n)
  return taken, index.publish(taken)


def test_keys_grow_and_find_their_slots():
  index = slots.SlotIndex(4)
  taken, keys = _published(index, 3)
  assert keys.dtype == np.uint64 and (np.diff(keys.astype(float)) > 0).all()
  index.remove(taken[1:2])
  live, found = index.find(keys)
  np.testing.assert_array_equal(live, [True, False, True])
  np.testing.assert_array_equal(found, taken[[0, 2]])
  assert (index.size, index.num_free) == (2, 2)


def test_a_slot_used_again_has_another_key():
  index = slots.SlotIndex(1)
  taken, old = _published(index, 1)
  index.remove(taken)
  _, new = _published(index, 1)
  assert old != new
  assert not index.find(old)[0].any()


def test_pinned_slots_are_not_used_again():
  index = slots.SlotIndex(3)
  taken, _ = _published(index, 3)
  index.pin(np.array([taken[0], taken[0], taken[1]]))
  index.remove(taken)
  assert (index.size, index.num_free) == (0, 1)
  index.unpin(np.array([taken[0], taken[1]]))
  assert index.num_free == 2
  index.unpin(taken[:1])
  assert index.num_free == 3
  assert sorted(index.reserve(3)) == [0, 1, 2]


def test_oldest_skips_gaps_and_survives_compaction():
  rng = np.random.default_rng(0)
  index = slots.SlotIndex(10)
  expected = []  # slots, oldest first
  for _ in range(200):
    taken, _ = _published(index, 2)
    expected += taken.tolist()
    gone = rng.choice(expected, size=min(1, len(expected) - 1), replace=False)
    index.remove(gone.astype(np.int64))
    expected = [slot for slot in expected if slot not in gone]
    np.testing.assert_array_equal(index.live(), expected)
    if len(expected) > 7:
      oldest = index.oldest(3)
      np.testing.assert_array_equal(oldest, expected[:3])
      index.remove(oldest)
      expected = expected[3:]
    assert index.size == len(expected)
    assert index.num_free == 10 - len(expected)


def test_a_first_item_that_stays_does_not_fill_the_order():
  index = slots.SlotIndex(4)
  first, _ = _published(index, 1)
  for _ in range(50):
    taken, _ = _published(index, 2)
    index.remove(taken)
  np.testing.assert_array_equal(index.live(), first)
  np.testing.assert_array_equal(index.oldest(1), first)


def test_occupy_restores_order_and_free_slots():
  index = slots.SlotIndex(5)
  taken, keys = _published(index, 4)
  other = slots.SlotIndex(5)
  other.occupy(taken[1:], keys[1:], index.next_sequence)
  np.testing.assert_array_equal(other.live(), taken[1:])
  np.testing.assert_array_equal(other.keys(taken[1:]), keys[1:])
  assert other.num_free == 2
  assert _published(other, 2)[1].min() > keys.max()
