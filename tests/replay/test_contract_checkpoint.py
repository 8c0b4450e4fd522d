"""What every backend must bring back from a checkpoint."""

import os

import numpy as np
import pytest

from seedrl_jax import replay


def test_queue_survives_a_checkpoint(make_store, toy, tmp_path):
  path = os.fspath(tmp_path / 'replay')
  store = make_store(toy.queue(8))
  for first in range(0, 6, 2):
    toy.insert(store, 't', [first, first + 1], [first, 1.0])
  store.sampler('t', 2).sample(0)
  store.checkpoint(path)
  other = make_store(toy.queue(8))
  toy.insert(other, 't', [50, 51])
  other.restore(path)
  info = other.info()['t']
  assert (info.size, info.inserts, info.samples) == (4, 6, 2)
  sample = other.sampler('t', 4).sample(0)
  assert toy.numbers(sample) == [2, 3, 4, 5]
  np.testing.assert_array_equal(sample.priorities, [2, 1, 4, 1])


def test_prioritized_survives_a_checkpoint(make_store, toy, tmp_path):
  path = os.fspath(tmp_path / 'replay')
  config = toy.items(max_size=6, max_times_sampled=40, priority_exponent=1.0)
  store = make_store(config)
  for first in range(0, 10, 2):
    toy.insert(store, 't', [first, first + 1], [1.0, 3.0])
  sample = store.sampler('t', 50).sample(0)
  keys = dict(zip(toy.numbers(sample), sample.keys, strict=True))
  store.checkpoint(path)

  other = make_store(config, seed=5)
  other.restore(path)
  info = other.info()['t']
  assert (info.size, info.inserts, info.samples) == (6, 10, 50)
  # Keys that were known before still name their unrolls.
  known = np.array([keys[5], keys[7], keys[9]])
  other.update_priorities('t', known, np.zeros(3))
  sample = other.sampler('t', 12).sample(0)
  assert set(toy.numbers(sample)) == {4, 6, 8}
  np.testing.assert_allclose(sample.probabilities, 1 / 3, rtol=1e-6)


def test_times_sampled_survive_a_checkpoint(make_store, toy, tmp_path):
  path = os.fspath(tmp_path / 'replay')
  config = toy.items('uniform', max_times_sampled=2)
  store = make_store(config)
  toy.insert(store, 't', [0, 1])
  first = toy.numbers(store.sampler('t', 3).sample(0))
  store.checkpoint(path)
  other = make_store(config)
  other.restore(path)
  assert other.info()['t'].size == 1
  last = toy.numbers(other.sampler('t', 1).sample(0))
  assert sorted(first + last) == [0, 0, 1, 1]


def test_ratio_goes_on_after_a_restore(make_store, toy, tmp_path):
  path = os.fspath(tmp_path / 'replay')
  config = toy.items(samples_per_insert=1.0, min_size=2, tolerance=0.0)
  store = make_store(config)
  toy.insert(store, 't', [0, 1])
  store.checkpoint(path)
  other = make_store(config)
  other.restore(path)
  sampler = other.sampler('t', 1)
  # A buffer of 1.5 around what two unrolls are worth.
  with pytest.raises(replay.RateLimited):
    toy.insert(other, 't', [0, 1])
  sampler.sample(0)
  with pytest.raises(replay.RateLimited):
    sampler.sample(0)
  toy.insert(other, 't', [0, 1])


@pytest.mark.parametrize('kind', ['queue', 'items'])
def test_what_changes_after_the_snapshot_is_not_saved(
  make_store, toy, tmp_path, kind
):
  path = os.fspath(tmp_path / 'replay')
  config = getattr(toy, kind)(max_size=8)
  store = make_store(config)
  toy.insert(store, 't', [0, 1])
  sizes = []

  def on_snapshot():
    assert not os.path.exists(path)
    sizes.append(store.info()['t'].size)

  store.checkpoint(path, on_snapshot)
  assert sizes == [2]
  toy.insert(store, 't', [2, 3])
  other = make_store(config)
  other.restore(path)
  assert other.info()['t'].size == 2


def test_a_checkpoint_of_sequences_cut_otherwise_is_refused(
  make_store, toy, tmp_path
):
  path = os.fspath(tmp_path / 'replay')
  make_store(toy.items(), steps=5, overlap=2).checkpoint(path)
  other = make_store(toy.items(), steps=5, overlap=3)
  with pytest.raises(replay.CheckpointError, match=r'--config\.unroll_length'):
    other.restore(path)
  assert other.info()['t'].size == 0


def test_a_missing_checkpoint_is_one_sentence(make_store, toy, tmp_path):
  store = make_store(toy.queue())
  with pytest.raises(replay.CheckpointError, match='no replay checkpoint'):
    store.restore(os.fspath(tmp_path / 'none'))
