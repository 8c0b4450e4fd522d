"""Properties of the embedded store only."""

import os
import threading

import numpy as np
import pytest

from seedrl_jax.replay import base as replay
from seedrl_jax.replay import table_configs
from seedrl_jax.replay.embedded import slots
from seedrl_jax.replay.embedded import store as embedded
from tests.patience import wait_until


def _store(toy, *configs, width=2, steps=3, seed=1):
  return embedded.EmbeddedStore(configs, toy.spec(steps), width, seed)


def _queue(max_size=8):
  return table_configs.QueueConfig('t', max_size)


def _items(max_size=8, **kwargs):
  return table_configs.ReplayConfig(
    't', 'prioritized', max_size, samples_per_insert=0.0, **kwargs
  )


@pytest.mark.parametrize('config', [_queue(), _items()])
def test_memory_stays_bounded_by_what_is_in_use(toy, config):
  store = _store(toy, config)
  writer, sampler = store.table('t'), store.table('t').sampler(2)
  seen = set()
  for _ in range(50):
    block = writer.allocate()
    writer.insert(block)
    sample = sampler.sample()
    seen |= {id(block), *(id(b) for b in sample.blocks)}
    sample.release()
  # A queue copies nothing; a replay reuses the block that it copied from.
  assert len(seen) == 1


def test_draws_follow_the_seed(toy):
  def keys(seed):
    store = _store(toy, _items(), seed=seed)
    toy.insert(store, 't', [0, 1])
    toy.insert(store, 't', [2, 3])
    return store.table('t').sampler(20).sample().keys.tolist()

  assert keys(1) == keys(1)
  assert keys(1) != keys(2)


def test_draws_go_on_after_a_restore(toy, tmp_path):
  path = os.fspath(tmp_path / 'replay')
  store = _store(toy, _items())
  toy.insert(store, 't', [0, 1])
  store.table('t').sampler(5).sample()
  store.checkpoint(path)
  other = _store(toy, _items(), seed=9)
  other.restore(path)
  samples = [s.table('t').sampler(20).sample().keys for s in (store, other)]
  np.testing.assert_array_equal(*samples)


def test_a_slot_that_is_being_read_is_not_overwritten(
  toy, threads, monkeypatch
):
  store = _store(toy, _items(max_size=2))
  toy.insert(store, 't', [0, 1])
  reading, go_on = threading.Semaphore(0), threading.Event()
  get = slots.SlotStorage.get

  def slow_get(self, places, block):
    reading.release()
    assert go_on.wait(300)
    get(self, places, block)

  monkeypatch.setattr(slots.SlotStorage, 'get', slow_get)
  got = []
  sampler = store.table('t').sampler(16)
  for first in (2, 4):
    threads.start(lambda: got.append(toy.numbers(sampler.sample())))
    assert reading.acquire(timeout=300)
    toy.insert(store, 't', [first, first + 1])
  # The two readers still need both spare blocks.
  threads.start(lambda: toy.insert(store, 't', [6, 7]))
  wait_until(lambda: store.info()['t'].waiting_writers == 1)
  go_on.set()
  assert threads.join() == []
  assert sorted(map(set, got), key=min) == [{0, 1}, {2, 3}]
  assert set(toy.numbers(sampler.sample())) == {6, 7}


@pytest.mark.parametrize('width', [1, 4])
def test_a_queue_is_restored_at_another_width(toy, tmp_path, width):
  path = os.fspath(tmp_path / 'replay')
  store = _store(toy, _queue())
  for first in (0, 2, 4):
    toy.insert(store, 't', [first, first + 1])
  store.checkpoint(path)
  other = _store(toy, _queue(), width=width)
  other.restore(path)
  kept = other.info()['t'].size
  numbers = toy.numbers(other.table('t').sampler(kept).sample())
  assert numbers == [0, 1, 2, 3, 4, 5][-kept:]
  assert kept == {1: 6, 4: 4}[width]


def test_a_smaller_table_keeps_the_newest(toy, tmp_path):
  path = os.fspath(tmp_path / 'replay')
  store = _store(toy, _items())
  for first in (0, 2, 4):
    toy.insert(store, 't', [first, first + 1], [1.0, 3.0])
  store.checkpoint(path)
  other = _store(toy, _items(max_size=3))
  other.restore(path)
  sample = other.table('t').sampler(60).sample()
  numbers = np.array(toy.numbers(sample))
  assert set(numbers.tolist()) == {3, 4, 5}
  np.testing.assert_array_equal(sample.priorities == 3, numbers % 2 == 1)
  toy.insert(other, 't', [6, 7])
  assert toy.drawn(other, 60) == {5, 6, 7}


@pytest.mark.parametrize('config', [_queue(), _items()])
def test_a_checkpoint_of_others_is_refused(toy, tmp_path, config):
  path = os.fspath(tmp_path / 'replay')
  _store(toy, config).checkpoint(path)
  other = _store(toy, config, steps=5)
  with pytest.raises(replay.CheckpointError, match=r'steps.*\[3\].*\[5\]'):
    other.restore(path)
  other = _store(toy, table_configs.QueueConfig('x', 8))
  with pytest.raises(replay.CheckpointError, match='tables'):
    other.restore(path)


@pytest.mark.parametrize('config', [_queue(), _items()])
def test_damage_leaves_a_table_that_works(toy, tmp_path, config):
  path = tmp_path / 'replay'
  store = _store(toy, config)
  toy.insert(store, 't', [77, 78])
  store.checkpoint(os.fspath(path))
  data = bytearray(path.read_bytes())
  # Only the images are 77s.
  data[data.index(b'\x4d' * 12) + 5] ^= 1
  path.write_bytes(data)
  other = _store(toy, config)
  toy.insert(other, 't', [0, 1])
  with pytest.raises(replay.CheckpointError, match='damaged'):
    other.restore(os.fspath(path))
  assert other.info()['t'].size == 2
  toy.insert(other, 't', [2, 3])
  assert toy.drawn(other, 2) <= {0, 1, 2, 3}


def test_sampling_goes_on_during_a_checkpoint(toy, tmp_path, monkeypatch):
  store = _store(toy, _items(max_size=2))
  toy.insert(store, 't', [0, 1])
  sampler = store.table('t').sampler(4)
  leaf_pieces = slots.SlotStorage.leaf_pieces
  calls = []

  def sampling_leaf_pieces(self, leaf, places):
    calls.append(sampler.sample())
    # The old unrolls, replaced by these, are still being saved.
    if len(calls) == 1:
      toy.insert(store, 't', [2, 3])
    return leaf_pieces(self, leaf, places)

  monkeypatch.setattr(slots.SlotStorage, 'leaf_pieces', sampling_leaf_pieces)
  path = os.fspath(tmp_path / 'replay')
  store.checkpoint(path)
  assert set(toy.numbers(sampler.sample())) == {2, 3}
  other = _store(toy, _items(max_size=2))
  other.restore(path)
  assert toy.drawn(other, 40) == {0, 1}


def test_inserts_into_a_full_table_wait_for_its_checkpoint(
  toy, tmp_path, threads
):
  store = _store(toy, _items(max_size=6))
  for first in (0, 2, 4):
    toy.insert(store, 't', [first, first + 1])

  def on_snapshot():
    # Memory has room for two blocks more than the table.
    toy.insert(store, 't', [6, 7])
    toy.insert(store, 't', [8, 9])
    threads.start(lambda: toy.insert(store, 't', [10, 11]))
    wait_until(lambda: store.info()['t'].waiting_writers == 1)

  store.checkpoint(os.fspath(tmp_path / 'replay'), on_snapshot)
  assert threads.join() == []
  assert toy.drawn(store, 90) <= set(range(6, 12))


def test_a_table_smaller_than_a_block_is_refused(toy):
  with pytest.raises(ValueError, match='must fit in'):
    _store(toy, _items(max_size=1))
