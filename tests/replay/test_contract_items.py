"""What every backend must do with uniform and prioritized tables."""

import itertools

import chex
import numpy as np
import pytest

from seedrl_jax import replay


@pytest.mark.parametrize('sampler', ['uniform', 'prioritized'])
def test_samples_come_in_blocks_for_training(make_store, toy, sampler):
  store = make_store(toy.items(sampler))
  toy.insert(store, 't', [1, 2])
  toy.insert(store, 't', [3, 4])
  sample = store.sampler('t', 6, num_blocks=2).sample(0)
  assert [block.width for block in sample.blocks] == [3, 3]
  chex.assert_shape(
    sample.blocks[0].unroll.steps.observation['speed'], (3,) * 3
  )
  assert set(toy.numbers(sample)) <= {1, 2, 3, 4}
  chex.assert_shape([sample.keys, sample.probabilities], (6,))
  np.testing.assert_allclose(sample.probabilities, 0.25)
  np.testing.assert_array_equal(sample.table_size, np.full(6, 4))
  np.testing.assert_array_equal(sample.priorities, np.ones(6))


def test_the_oldest_gives_way(make_store, toy):
  store = make_store(toy.items('uniform', max_size=4))
  for first in range(0, 10, 2):
    toy.insert(store, 't', [first, first + 1])
  assert store.info()['t'].size == 4
  numbers = toy.numbers(store.sampler('t', 200).sample(0))
  assert set(numbers) == {6, 7, 8, 9}


def _frequencies(store, toy, batches=50, batch_size=100):
  sampler = store.sampler('t', batch_size)
  counts = np.zeros(256)
  for _ in range(batches):
    sample = sampler.sample(0)
    np.add.at(counts, toy.numbers(sample), 1)
    sample.release()
  return counts / counts.sum()


@pytest.mark.parametrize('exponent', [0.0, 0.5, 1.0])
def test_prioritized_draws_by_power_of_priority(make_store, toy, exponent):
  store = make_store(toy.items(priority_exponent=exponent))
  priorities = np.array([1.0, 2.0, 4.0, 8.0])
  toy.insert(store, 't', [0, 1], priorities[:2])
  toy.insert(store, 't', [2, 3], priorities[2:])
  expected = priorities**exponent / (priorities**exponent).sum()
  measured = _frequencies(store, toy)[:4]
  # Pearson's chi-square of 5000 draws, 3 degrees of freedom: 30.7 is exceeded
  # once in a million times.
  assert 5000 * ((measured - expected) ** 2 / expected).sum() < 30.7
  sample = store.sampler('t', 20).sample(0)
  numbers = toy.numbers(sample)
  np.testing.assert_allclose(sample.probabilities, expected[numbers], rtol=1e-6)
  np.testing.assert_array_equal(sample.priorities, priorities[numbers])


def test_uniform_ignores_priorities(make_store, toy):
  store = make_store(toy.items('uniform'))
  toy.insert(store, 't', [0, 1], [1.0, 1000.0])
  measured = _frequencies(store, toy)[:2]
  np.testing.assert_allclose(measured, [0.5, 0.5], atol=0.03)


def test_updated_priorities_count_and_unknown_keys_do_not(make_store, toy):
  store = make_store(toy.items(priority_exponent=1.0))
  toy.insert(store, 't', [0, 1])
  toy.insert(store, 't', [2, 3])
  sample = store.sampler('t', 100).sample(0)
  key_of = dict(zip(toy.numbers(sample), sample.keys, strict=True))
  keys = np.array([key_of[0], key_of[1], key_of[2], 12345, 0], np.uint64)
  store.update_priorities('t', keys, np.array([0.0, 0.0, 3.0, 7.0, 7.0]))
  sample = store.sampler('t', 200).sample(0)
  assert set(toy.numbers(sample)) == {2, 3}
  three = np.array(toy.numbers(sample)) == 3
  np.testing.assert_allclose(sample.probabilities[three], 0.25)


def test_keys_of_unrolls_that_left_are_ignored(make_store, toy):
  store = make_store(toy.items(max_size=2, priority_exponent=1.0))
  toy.insert(store, 't', [0, 1])
  old = store.sampler('t', 20).sample(0).keys
  for first in range(2, 12, 2):
    toy.insert(store, 't', [first, first + 1])
  store.update_priorities('t', old, np.full(20, 1e6))
  sample = store.sampler('t', 20).sample(0)
  np.testing.assert_array_equal(sample.priorities, np.ones(20))


def test_all_zero_priorities_draw_uniformly(make_store, toy):
  store = make_store(toy.items())
  toy.insert(store, 't', [0, 1], [0.0, 0.0])
  sample = store.sampler('t', 100).sample(0)
  assert set(toy.numbers(sample)) == {0, 1}
  np.testing.assert_allclose(sample.probabilities, 0.5)


@pytest.mark.parametrize(
  'bad', [[-1.0, 1.0], [np.nan, 1.0], [1.0], [np.inf, 0]]
)
def test_bad_priorities_are_refused(make_store, toy, bad):
  store = make_store(toy.items())
  with pytest.raises(ValueError, match='Priorities'):
    toy.insert(store, 't', [0, 1], bad)
  toy.insert(store, 't', [0, 1])
  keys = store.sampler('t', 2).sample(0).keys
  with pytest.raises(ValueError, match='Priorities'):
    store.update_priorities('t', keys, np.array(bad))


@pytest.mark.parametrize('sampler', ['uniform', 'prioritized'])
def test_unrolls_leave_after_max_times_sampled(make_store, toy, sampler):
  store = make_store(toy.items(sampler, max_times_sampled=3))
  toy.insert(store, 't', [0, 1], [1.0, 50.0])
  toy.insert(store, 't', [2, 3], [1.0, 0.0])
  sampler = store.sampler('t', 4)
  counts = np.zeros(4, int)
  for _ in range(3):
    np.add.at(counts, toy.numbers(sampler.sample(0)), 1)
  np.testing.assert_array_equal(counts, [3, 3, 3, 3])
  assert store.info()['t'].size == 0
  with pytest.raises(replay.RateLimited):
    sampler.sample(0)


def test_nothing_is_sampled_below_the_minimum_size(make_store, toy):
  store = make_store(toy.items(min_size=4))
  sampler = store.sampler('t', 1)
  toy.insert(store, 't', [0, 1])
  with pytest.raises(replay.RateLimited):
    sampler.sample(0)
  toy.insert(store, 't', [2, 3])
  sampler.sample(0)


# The ratio's buffer must hold a block and a batch whatever their sizes.
@pytest.mark.parametrize(
  'width,batch_size,ratio,min_size,tolerance',
  [
    (2, 4, 1.5, 10, 0.1),
    (8, 1, 1.0, 9, 0.0),
    (1, 16, 0.25, 1, 0.0),
    (3, 5, 4.0, 7, 0.01),
    (8, 32, 1.5, 64, 0.5),
  ],
)
def test_ratio_is_kept_and_never_locks(
  make_store, toy, width, batch_size, ratio, min_size, tolerance
):
  config = toy.items(
    samples_per_insert=ratio, min_size=min_size, tolerance=tolerance
  )
  store = make_store(config, width=width)
  sampler = store.sampler('t', batch_size)
  numbers = itertools.repeat(list(range(width)))
  buffer = max(tolerance * min_size * ratio, (width * ratio + batch_size) / 2)
  for turn in range(600):
    # Whoever is asked first passes as often as it can.
    order = ('insert', 'sample') if turn < 300 else ('sample', 'insert')
    for side in order:
      try:
        if side == 'insert':
          toy.insert(store, 't', next(numbers))
        else:
          sampler.sample(0).release()
        break
      except replay.RateLimited:
        continue
    else:
      raise AssertionError('neither insert nor sample may pass')
    info = store.info()['t']
    if info.samples:
      debt = (info.inserts - min_size) * ratio - info.samples
      assert abs(debt) <= buffer + width * ratio
  assert info.samples_per_insert == pytest.approx(ratio, rel=0.3)


def test_limits_of_times_and_ratio_together_never_lock(make_store, toy):
  config = toy.items(
    'uniform', samples_per_insert=1.0, max_times_sampled=1, max_size=10
  )
  store = make_store(config)
  # Before a sampler says how much it takes, inserts run ahead and lose items.
  with pytest.raises(replay.RateLimited):
    for _ in range(100):
      toy.insert(store, 't', [0, 1])
  sampler = store.sampler('t', 8)
  drawn = 0
  for _ in range(200):
    try:
      sampler.sample(0).release()
      drawn += 1
    except replay.RateLimited:
      toy.insert(store, 't', [0, 1])
  assert drawn > 30


def test_impossible_batches_are_refused(make_store, toy):
  store = make_store(toy.items(max_size=3, max_times_sampled=2))
  with pytest.raises(ValueError, match='never gives a batch of 7'):
    store.sampler('t', 7)
  with pytest.raises(ValueError, match='2 equal blocks'):
    store.sampler('t', 5, num_blocks=2)
