"""Properties of every backend's uniform and prioritized replay."""

import os
import threading

import chex
import numpy as np
import pytest

from seedrl_jax.replay import base as replay


@pytest.mark.parametrize('sampler', ['uniform', 'prioritized'])
def test_samples_come_in_blocks_for_training(make_store, toy, sampler):
  store = make_store(toy.items(sampler))
  toy.insert_pairs(store, 2)
  store.flush()
  sample = store.table('t').sampler(6, num_blocks=2).sample()
  assert [block.width for block in sample.blocks] == [3, 3]
  chex.assert_shape(
    sample.blocks[0].unroll.steps.observation['speed'], (3,) * 3
  )
  assert set(toy.numbers(sample)) <= {0, 1, 2, 3}
  chex.assert_shape([sample.keys, sample.probabilities], (6,))
  chex.assert_type([sample.probabilities, sample.table_size], np.float32)
  np.testing.assert_allclose(sample.probabilities, 0.25)
  np.testing.assert_array_equal(sample.table_size, np.full(6, 4))
  np.testing.assert_array_equal(sample.priorities, np.ones(6))


def test_the_oldest_gives_way(make_store, toy):
  store = make_store(toy.items('uniform', max_size=4))
  toy.insert_pairs(store, 5)
  store.flush()
  assert store.info()['t'].size == 4
  assert toy.drawn(store, 200) == {6, 7, 8, 9}


def _frequencies(store, toy, batches=20, batch_size=100):
  sampler = store.table('t').sampler(batch_size)
  counts = np.zeros(256)
  for _ in range(batches):
    sample = sampler.sample()
    np.add.at(counts, toy.numbers(sample), 1)
    sample.release()
  return counts / counts.sum()


@pytest.mark.parametrize(
  'sampler, exponent', [('uniform', 0.9), ('prioritized', 0.5)]
)
def test_draws_are_by_power_of_priority(make_store, toy, sampler, exponent):
  store = make_store(toy.items(sampler, priority_exponent=exponent))
  priorities = np.array([1.0, 2.0, 4.0, 8.0])
  toy.insert(store, 't', [0, 1], priorities[:2])
  toy.insert(store, 't', [2, 3], priorities[2:])
  store.flush()
  powers = priorities ** (0.0 if sampler == 'uniform' else exponent)
  expected = powers / powers.sum()
  measured = _frequencies(store, toy)[:4]
  # Pearson's chi-square, 3 degrees of freedom: once in 1e6 exceeds 30.7.
  assert 2000 * ((measured - expected) ** 2 / expected).sum() < 30.7
  sample = store.table('t').sampler(20).sample()
  numbers = toy.numbers(sample)
  np.testing.assert_allclose(sample.probabilities, expected[numbers], rtol=1e-6)
  np.testing.assert_array_equal(sample.priorities, priorities[numbers])


def test_updated_priorities_count_and_unknown_keys_do_not(make_store, toy):
  store = make_store(toy.items(priority_exponent=1.0))
  toy.insert_pairs(store, 2)
  store.flush()
  sample = store.table('t').sampler(100).sample()
  key_of = dict(zip(toy.numbers(sample), sample.keys, strict=True))
  keys = np.array([key_of[0], key_of[1], key_of[2], 12345, 0], np.uint64)
  store.table('t').update_priorities(keys, np.array([0.0, 0.0, 3.0, 7.0, 7.0]))
  store.flush()
  sample = store.table('t').sampler(200).sample()
  assert set(toy.numbers(sample)) == {2, 3}
  three = np.array(toy.numbers(sample)) == 3
  np.testing.assert_allclose(sample.probabilities[three], 0.25)


def test_keys_of_unrolls_that_left_are_ignored(make_store, toy):
  store = make_store(toy.items(max_size=2, priority_exponent=1.0))
  toy.insert(store, 't', [0, 1])
  store.flush()
  old = store.table('t').sampler(20).sample()
  toy.insert_pairs(store, 5)
  store.flush()
  old.update_priorities(np.full(20, 1e6))
  store.flush()
  sample = store.table('t').sampler(20).sample()
  np.testing.assert_array_equal(sample.priorities, np.ones(20))


def test_all_zero_priorities_draw_uniformly(make_store, toy):
  store = make_store(toy.items())
  toy.insert(store, 't', [0, 1], [0.0, 0.0])
  store.flush()
  sample = store.table('t').sampler(100).sample()
  assert set(toy.numbers(sample)) == {0, 1}
  np.testing.assert_allclose(sample.probabilities, 0.5)


@pytest.mark.parametrize('bad', [[-1.0, 1.0], [np.nan, 1.0], [1.0]])
def test_bad_priorities_are_refused(make_store, toy, bad):
  store = make_store(toy.items())
  with pytest.raises(ValueError, match='riorities'):
    toy.insert(store, 't', [0, 1], bad)
  toy.insert(store, 't', [0, 1])
  sample = store.table('t').sampler(2).sample()
  with pytest.raises(ValueError, match='riorities'):
    sample.update_priorities(np.array(bad))


@pytest.mark.parametrize('sampler', ['uniform', 'prioritized'])
def test_each_is_sampled_as_often_as_it_may(make_store, toy, sampler):
  store = make_store(toy.items(sampler, max_times_sampled=3))
  toy.insert(store, 't', [0, 1], [1.0, 50.0])
  toy.insert(store, 't', [2, 3], [1.0, 0.0])
  drawing = store.table('t').sampler(4)
  counts = np.zeros(4, int)
  for _ in range(3):
    np.add.at(counts, toy.numbers(drawing.sample()), 1)
  np.testing.assert_array_equal(counts, [3, 3, 3, 3])
  assert store.info()['t'].size == 0
  with pytest.raises(replay.RateLimited):
    drawing.sample(wait=False)


def test_nothing_is_sampled_below_the_minimum_size(make_store, toy):
  store = make_store(toy.items(min_size=4))
  sampler = store.table('t').sampler(1)
  toy.insert(store, 't', [0, 1])
  with pytest.raises(replay.RateLimited):
    sampler.sample(wait=False)
  toy.insert(store, 't', [2, 3])
  sampler.sample()


# The ratio's buffer must hold a block and a batch of any size.
@pytest.mark.parametrize(
  'width,batch_size,rules',
  [
    (2, 4, {'samples_per_insert': 1.5, 'min_size': 10}),
    (1, 16, {'samples_per_insert': 0.25, 'tolerance': 0.0}),
    # A small table, so that memory is reused while others read.
    (2, 6, {'samples_per_insert': 2.0, 'min_size': 8, 'max_size': 16}),
  ],
)
def test_threads_keep_the_ratio_and_never_lock(
  make_store, toy, threads, width, batch_size, rules
):
  config = toy.items(**rules)
  store = make_store(config, width=width, batch_size=batch_size)
  table = store.table('t')
  closing = threading.Event()
  batches = min(100, 800 // batch_size)

  def write(first: int) -> None:
    numbers = [(first + i) % 256 for i in range(width)]
    try:
      while True:
        toy.insert(store, 't', numbers, np.arange(width) + 1.0)
    except replay.StoreClosed:
      assert closing.is_set()

  def read() -> None:
    sampler = table.sampler(batch_size)
    for _ in range(batches):
      sample = sampler.sample()
      # Checks that no unroll mixes two.
      assert len(toy.numbers(sample)) == batch_size
      sample.update_priorities(sample.priorities + 0.5)
      sample.release()

  # Before a sampler states its batch size, inserts may run ahead.
  table.sampler(batch_size)
  for first in (0, 100):
    threads.start(lambda first=first: write(first))
  readers = type(threads)()
  for _ in range(2):
    readers.start(read)
  assert readers.join() == []
  closing.set()
  info = store.info()['t']
  store.close()
  assert threads.join() == []
  assert info.samples == 2 * batches * batch_size
  assert info.size <= config.max_size
  ratio = config.samples_per_insert
  debt = (info.inserts - config.min_size) * ratio - info.samples
  share = config.tolerance * config.min_size * ratio
  widest = max(width, batch_size)
  assert abs(debt) <= max(share, (widest * ratio + batch_size) / 2)


def test_limits_of_times_and_ratio_together_never_lock(make_store, toy):
  config = toy.items(
    'uniform', samples_per_insert=1.0, max_times_sampled=1, max_size=10
  )
  store = make_store(config)
  sampler = store.table('t').sampler(8)
  drawn = 0
  while drawn < 30:
    try:
      sampler.sample(wait=False).release()
      drawn += 1
    except replay.RateLimited:
      toy.insert(store, 't', [0, 1])


def test_impossible_batches_are_refused(make_store, toy):
  table = make_store(toy.items(max_size=3, max_times_sampled=2)).table('t')
  with pytest.raises(ValueError, match='never gives a batch of 7'):
    table.sampler(7)
  with pytest.raises(ValueError, match='2 equal blocks'):
    table.sampler(5, num_blocks=2)


def test_survives_a_checkpoint(make_store, toy, tmp_path):
  path = os.fspath(tmp_path / 'replay')
  config = toy.items(max_size=6, max_times_sampled=40, priority_exponent=1.0)
  store = make_store(config)
  for first in range(0, 10, 2):
    toy.insert(store, 't', [first, first + 1], [1.0, 3.0])
  store.flush()
  sample = store.table('t').sampler(50).sample()
  keys = dict(zip(toy.numbers(sample), sample.keys, strict=True))
  store.checkpoint(path)

  other = make_store(config, seed=5)
  other.restore(path)
  info = other.info()['t']
  assert (info.size, info.inserts, info.samples) == (6, 10, 50)
  # Earlier keys still name their unrolls.
  known = np.array([keys[5], keys[7], keys[9]])
  other.table('t').update_priorities(known, np.zeros(3))
  other.flush()
  sample = other.table('t').sampler(40).sample()
  assert set(toy.numbers(sample)) == {4, 6, 8}
  np.testing.assert_allclose(sample.probabilities, 1 / 3, rtol=1e-6)


def test_times_sampled_survive_a_checkpoint(make_store, toy, tmp_path):
  path = os.fspath(tmp_path / 'replay')
  config = toy.items('uniform', max_times_sampled=2)
  store = make_store(config)
  toy.insert(store, 't', [0, 1])
  store.flush()
  first = toy.numbers(store.table('t').sampler(3).sample())
  store.checkpoint(path)
  other = make_store(config)
  other.restore(path)
  assert other.info()['t'].size == 1
  last = toy.numbers(other.table('t').sampler(1).sample())
  assert sorted(first + last) == [0, 0, 1, 1]


def test_ratio_goes_on_after_a_restore(make_store, toy, tmp_path, threads):
  path = os.fspath(tmp_path / 'replay')
  config = toy.items(samples_per_insert=1.0, min_size=9, tolerance=0.0)
  store = make_store(config, batch_size=1)
  toy.insert_pairs(store, 5)
  store.checkpoint(path)
  other = make_store(config, batch_size=1)
  other.restore(path)
  sampler = other.table('t').sampler(1)
  threads.start(lambda: toy.insert_pairs(other, 20))
  for _ in range(10):
    info = other.info()['t']
    # The buffer around the worth of nine unrolls.
    assert abs(info.inserts - info.samples - 9) <= 1.5
    sampler.sample().release()


def test_an_interrupted_store_still_takes_priorities(make_store, toy, tmp_path):
  path = os.fspath(tmp_path / 'replay')
  store = make_store(toy.items())
  toy.insert(store, 't', [0, 1])
  store.flush()
  sample = store.table('t').sampler(20).sample()
  store.interrupt()
  # The end of a run overtakes its last update.
  sample.update_priorities(np.full(20, 4.0))
  store.checkpoint(path)
  other = make_store(toy.items())
  other.restore(path)
  restored = other.table('t').sampler(20).sample()
  np.testing.assert_array_equal(restored.priorities, 4.0)
