"""Properties of every backend, whatever its tables: closing, checkpoints."""

import os

import pytest

from seedrl_jax.replay import base as replay
from tests.patience import wait_until


@pytest.fixture(params=['queue', 'items'], name='kind')
def kind_fixture(request, toy):
  return getattr(toy, request.param)(max_size=4)


def test_close_wakes_every_waiter(make_store, toy, threads, kind):
  store = make_store(kind)
  sampler = store.table('t').sampler(2)
  for _ in range(3):
    threads.start(sampler.sample)
  wait_until(lambda: store.info()['t'].waiting_samplers == 3)
  store.close()
  assert [type(e) for e in threads.join()] == [replay.StoreClosed] * 3


def test_close_wakes_waiting_writers(make_store, toy, threads):
  store = make_store(toy.queue(2))
  for _ in range(3):
    threads.start(lambda: toy.insert_pairs(store, 9))
  wait_until(lambda: store.info()['t'].waiting_writers == 3)
  store.close()
  assert [type(e) for e in threads.join()] == [replay.StoreClosed] * 3


def test_an_interrupted_store_can_still_be_saved(
  make_store, toy, kind, tmp_path
):
  store = make_store(kind)
  toy.insert_pairs(store, 2)
  table = store.table('t')
  sampler = table.sampler(2)
  sample = sampler.sample()
  block = table.allocate()
  store.interrupt()
  for call in (
    lambda: table.insert(block),
    sampler.sample,
    lambda: table.sampler(2).sample(),
  ):
    with pytest.raises(replay.StoreClosed):
      call()
  sample.release()
  path = os.fspath(tmp_path / 'replay')
  store.checkpoint(path)
  info = store.info()['t']
  store.close()
  store.close()
  sample.release()
  with pytest.raises(replay.StoreClosed):
    table.insert(block)
  other = make_store(kind)
  other.restore(path)
  restored = other.info()['t']
  assert (restored.size, restored.inserts) == (info.size, info.inserts)


def test_what_changes_after_the_snapshot_is_not_saved(
  make_store, toy, tmp_path, kind
):
  path = os.fspath(tmp_path / 'replay')
  store = make_store(kind)
  toy.insert(store, 't', [0, 1])
  sizes = []

  def on_snapshot():
    assert not os.path.exists(path)
    sizes.append(store.info()['t'].size)

  store.checkpoint(path, on_snapshot)
  assert sizes == [2]
  toy.insert(store, 't', [2, 3])
  other = make_store(kind)
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
