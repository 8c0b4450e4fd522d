"""Properties of every backend's queue (backends: conftest.py)."""

import os

import chex
import numpy as np
import pytest

from seedrl_jax.replay import base as replay
from tests.patience import wait_until


def test_hands_out_each_unroll_once_in_order(make_store, toy):
  store = make_store(toy.queue(8))
  toy.insert_pairs(store, 4)
  sampler = store.table('t').sampler(batch_size=4)
  assert toy.numbers(sampler.sample()) == [0, 1, 2, 3]
  assert toy.numbers(sampler.sample()) == [4, 5, 6, 7]
  with pytest.raises(replay.RateLimited, match='sample from table t'):
    sampler.sample(wait=False)


def test_sample_has_the_layout_for_training(make_store, toy):
  store = make_store(toy.queue())
  toy.insert_pairs(store, 2)
  sample = store.table('t').sampler(4, num_blocks=2).sample()
  assert [block.width for block in sample.blocks] == [2, 2]
  unroll = sample.blocks[0].unroll
  chex.assert_shape(unroll.steps.observation['image'], (3, 2, 2, 2))
  chex.assert_shape(unroll.steps.reward, (3, 2))
  chex.assert_shape(unroll.initial_core[0], (2, 4))
  chex.assert_shape(unroll.env_id, (2,))
  assert unroll.steps.agent_output[1] is None
  chex.assert_type(unroll.steps.observation['image'], np.uint8)


def test_has_no_priorities(make_store, toy):
  store = make_store(toy.queue())
  toy.insert(store, 't', [1, 2], [7.0, 0.0])
  sample = store.table('t').sampler(2).sample()
  weights = sample.importance_weights(0.6)
  assert weights.dtype == np.float32
  np.testing.assert_array_equal(weights, [1, 1])
  sample.update_priorities(np.zeros(2))
  store.flush()


def test_full_queue_makes_inserts_wait_for_a_sample(make_store, toy, threads):
  store = make_store(toy.queue(5))
  threads.start(lambda: toy.insert_pairs(store, 5))
  wait_until(lambda: store.info()['t'].waiting_writers == 1)
  assert store.info()['t'].inserts <= 4
  sampler = store.table('t').sampler(2)
  for first in range(0, 10, 2):
    assert toy.numbers(sampler.sample()) == [first, first + 1]
  assert threads.join() == []
  assert store.info()['t'].writer_wait_seconds > 0


def test_sample_waits_for_a_whole_batch(make_store, toy, threads):
  store = make_store(toy.queue(4))
  sampler = store.table('t').sampler(4)
  got = []
  threads.start(lambda: got.extend(toy.numbers(sampler.sample())))
  wait_until(lambda: store.info()['t'].waiting_samplers == 1)
  toy.insert(store, 't', [0, 1])
  assert store.info()['t'].waiting_samplers == 1
  toy.insert(store, 't', [2, 3])
  assert threads.join() == []
  assert got == [0, 1, 2, 3]
  assert store.info()['t'].sampler_wait_seconds > 0


def test_needs_room_for_a_batch_of_whole_blocks(make_store, toy):
  queue = make_store(toy.queue(4)).table('t')
  with pytest.raises(ValueError, match='max_size=4'):
    queue.sampler(6)
  with pytest.raises(ValueError, match='batch_size=3'):
    queue.sampler(3)
  with pytest.raises(ValueError, match='in 1 blocks'):
    queue.sampler(4, num_blocks=1)


def test_under_threads_passes_each_unroll_once(make_store, toy, threads):
  store = make_store(toy.queue(12))
  writers, samplers, per_writer = 3, 2, 400
  batches = writers * per_writer // 2 // samplers
  got: list[int] = []

  def write(index: int) -> None:
    for i in range(per_writer):
      block = store.table('t').allocate()
      block.unroll.env_id[:] = 2 * (index * per_writer + i) + np.arange(2)
      store.table('t').insert(block)

  def read() -> None:
    sampler = store.table('t').sampler(4)
    for _ in range(batches):
      sample = sampler.sample()
      for block in sample.blocks:
        got.extend(block.unroll.env_id.tolist())
      sample.release()

  for index in range(writers):
    threads.start(lambda index=index: write(index))
  for _ in range(samplers):
    threads.start(read)
  assert threads.join() == []
  assert sorted(got) == list(range(writers * per_writer * 2))
  assert store.info()['t'].size == 0


def test_survives_a_checkpoint(make_store, toy, tmp_path):
  path = os.fspath(tmp_path / 'replay')
  store = make_store(toy.queue(8))
  toy.insert_pairs(store, 3)
  store.table('t').sampler(2).sample()
  store.checkpoint(path)
  other = make_store(toy.queue(8))
  toy.insert(other, 't', [50, 51])
  other.restore(path)
  info = other.info()['t']
  assert (info.size, info.inserts, info.samples) == (4, 6, 2)
  assert toy.numbers(other.table('t').sampler(4).sample()) == [2, 3, 4, 5]
