"""What every backend must do with a queue (backends: see conftest.py)."""

import chex
import numpy as np
import pytest

from seedrl_jax import replay


def test_queue_hands_out_each_unroll_once_in_order(make_store, toy):
  store = make_store(toy.queue(8))
  for first in range(0, 8, 2):
    toy.insert(store, 't', [first, first + 1])
  sampler = store.sampler('t', batch_size=4)
  assert toy.numbers(sampler.sample(0)) == [0, 1, 2, 3]
  assert toy.numbers(sampler.sample(0)) == [4, 5, 6, 7]
  with pytest.raises(replay.RateLimited, match='sample from table t'):
    sampler.sample(0)


def test_queue_sample_has_the_layout_for_training(make_store, toy):
  store = make_store(toy.queue())
  toy.insert(store, 't', [1, 2])
  toy.insert(store, 't', [3, 4])
  sample = store.sampler('t', 4, num_blocks=2).sample(0)
  assert [block.width for block in sample.blocks] == [2, 2]
  unroll = sample.blocks[0].unroll
  chex.assert_shape(unroll.steps.observation['image'], (3, 2, 2, 2))
  chex.assert_shape(unroll.steps.reward, (3, 2))
  chex.assert_shape(unroll.initial_core[0], (2, 4))
  chex.assert_shape(unroll.env_id, (2,))
  assert unroll.steps.agent_output[1] is None
  chex.assert_type(unroll.steps.observation['image'], np.uint8)
  chex.assert_type([sample.probabilities, sample.table_size], np.float32)
  np.testing.assert_array_equal(sample.probabilities, np.ones(4))
  np.testing.assert_array_equal(sample.table_size, np.full(4, 4))
  assert sample.keys.dtype == np.uint64 and len(set(sample.keys)) == 4


def test_queue_refuses_what_would_exceed_its_size(make_store, toy):
  store = make_store(toy.queue(5))
  toy.insert(store, 't', [0, 1])
  toy.insert(store, 't', [2, 3])
  with pytest.raises(replay.RateLimited, match='insert into table t'):
    toy.insert(store, 't', [4, 5])
  assert store.info()['t'].size == 4


def test_refused_block_stays_the_callers(make_store, toy):
  store = make_store(toy.queue(2))
  toy.insert(store, 't', [0, 1])
  writer = store.writer('t')
  block = writer.allocate()
  toy.fill(block, [2, 3])
  with pytest.raises(replay.RateLimited):
    writer.insert(block, timeout=0)
  store.sampler('t', 2).sample(0)
  writer.insert(block, timeout=0)
  assert toy.numbers(store.sampler('t', 2).sample(0)) == [2, 3]


def test_waiting_insert_goes_on_after_a_sample(make_store, toy, threads):
  store = make_store(toy.queue(2))
  toy.insert(store, 't', [0, 1])
  threads.start(lambda: toy.insert(store, 't', [2, 3], timeout=None))
  threads.until(lambda: store.info()['t'].waiting_writers == 1)
  sampler = store.sampler('t', 2)
  assert toy.numbers(sampler.sample(0)) == [0, 1]
  assert threads.join() == []
  assert toy.numbers(sampler.sample(0)) == [2, 3]
  assert store.info()['t'].writer_wait_seconds > 0


def test_waiting_sample_goes_on_after_inserts(make_store, toy, threads):
  store = make_store(toy.queue(4))
  sampler = store.sampler('t', 4)
  got = []
  threads.start(lambda: got.extend(toy.numbers(sampler.sample())))
  threads.until(lambda: store.info()['t'].waiting_samplers == 1)
  toy.insert(store, 't', [0, 1])
  assert store.info()['t'].waiting_samplers == 1
  toy.insert(store, 't', [2, 3])
  assert threads.join() == []
  assert got == [0, 1, 2, 3]
  assert store.info()['t'].sampler_wait_seconds > 0


def test_queue_needs_room_for_a_batch_of_whole_blocks(make_store, toy):
  store = make_store(toy.queue(4))
  with pytest.raises(ValueError, match='max_size=4'):
    store.sampler('t', 6)
  with pytest.raises(ValueError, match='batch_size=3'):
    store.sampler('t', 3)
  with pytest.raises(ValueError, match='in 1 blocks'):
    store.sampler('t', 4, num_blocks=1)


def test_memory_comes_back_only_after_release(make_store, toy):
  store = make_store(toy.queue(8))
  writer = store.writer('t')
  toy.insert(store, 't', [1, 2])
  sample = store.sampler('t', 2).sample(0)
  held = sample.blocks[0]
  others = [writer.allocate() for _ in range(4)]
  for other in others:
    toy.fill(other, [9, 9])
  assert toy.numbers(sample) == [1, 2]
  sample.release()
  sample.release()
  again = [writer.allocate() for _ in range(2)]
  shared = [np.shares_memory(b.leaves[0], held.leaves[0]) for b in again]
  assert sum(shared) <= 1
  assert not np.shares_memory(again[0].leaves[0], again[1].leaves[0])
