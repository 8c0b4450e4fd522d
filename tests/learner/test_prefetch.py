"""Tests the path of batches to the training devices."""

import threading
import types as py_types

import jax
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.learner import prefetch, update
from seedrl_jax.replay import base as replay
from seedrl_jax.replay import table_configs
from seedrl_jax.replay.embedded import store as embedded
from tests.learner import toys
from tests.patience import PATIENCE, wait_until


class _Sampler(replay.TrajectorySampler):
  """Returns some samples of one unroll, then raises that it is closed.

  Sample i has reward i and the parameter versions `[i, 100]`; the last step
  only bootstraps.
  """

  def __init__(self, count):
    self.drawn = 0
    self.released = []
    self._count = count

  def sample(self, wait=True):
    if self.drawn == self._count:
      raise replay.StoreClosed('no more')
    number = self.drawn
    self.drawn += 1
    batch = toys.batch_of([float(number)])
    batch.unroll.steps.parameter_version[:] = [[number], [100]]
    block = replay.Block(batch.unroll, [], 1)
    return replay.Sample([block], lambda blocks: self.released.append(number))


def _never():
  return False


def _make(sampler, size=1, num_devices=1):
  updater = update.Updater(toys.make_agent(), jax.devices()[:num_devices])
  return prefetch.Prefetcher(sampler, updater.shard, size)


def _start(function):
  thread = threading.Thread(target=function, daemon=True)
  thread.start()
  return thread


def _join(thread):
  thread.join(PATIENCE)
  assert not thread.is_alive(), 'a thread hangs'


def _until_waiting(prefetcher):
  """Waits until another thread waits in the prefetcher."""
  wait_until(lambda: prefetcher._condition._waiters)


def _reward(item):
  return item.batch.unroll.steps.reward[0, 0, 0].item()


@pytest.fixture(name='store')
def store_fixture():
  config = table_configs.QueueConfig('t', max_size=8)
  store = embedded.EmbeddedStore([config], toys.unroll_spec(), 2, seed=0)
  yield store
  store.close()


def _insert(store, numbers):
  """Inserts a block: rewards are the numbers, versions the numbers + t."""
  block = store.table('t').allocate()
  for leaf in block.leaves:
    leaf[...] = 0
  steps = block.unroll.steps
  steps.reward[:] = numbers
  steps.parameter_version[:] = np.add.outer(np.arange(2), numbers)
  block.unroll.env_id[:] = numbers
  store.table('t').insert(block)


def test_batch_is_what_the_store_gave(store):
  _insert(store, [10, 20])
  _insert(store, [30, 40])
  sampler = store.table('t').sampler(batch_size=4, num_blocks=2)
  item = _make(sampler, num_devices=2).fetch(wait=False)
  unroll = item.batch.unroll
  # `[D, T + 1, B / D]` and `[D, B / D]`.
  row = [[10, 20], [30, 40]]
  expected = np.repeat(np.expand_dims(row, 1), 2, axis=1)
  np.testing.assert_array_equal(unroll.steps.reward, expected)
  np.testing.assert_array_equal(unroll.env_id, row)
  np.testing.assert_array_equal(item.batch.weight, np.ones((2, 2)))
  for i, shard in enumerate(unroll.env_id.addressable_shards):
    assert shard.device == jax.devices()[i]
  # Of trained steps; the last one only bootstraps.
  assert item.version_mean == 25.0
  assert item.version_min == 10


def test_demonstrations_have_no_version(store):
  # 0 a step later, at the step that only bootstraps.
  none = types.NO_VERSION
  _insert(store, [30, none])
  _insert(store, [none, 40])
  sampler = store.table('t').sampler(batch_size=4, num_blocks=2)
  item = _make(sampler, num_devices=2).fetch(wait=False)
  assert (item.version_mean, item.version_min) == (35.0, 30)


def test_to_batches_gives_each_block_its_columns():
  blocks = [
    replay.Block(types.Unroll((), (), np.full(2, i)), [], 2) for i in range(3)
  ]
  sample = replay.ReplaySample(
    blocks,
    on_release=lambda blocks: None,
    keys=np.arange(6, dtype=np.uint64),
    probabilities=np.arange(1.0, 7.0) / 64,
    table_size=np.full(6, 4.0),
    priorities=np.ones(6),
    on_update=lambda priorities: None,
  )
  batches = prefetch.to_batches(sample, importance_exponent=0.5)
  assert len(batches) == 3
  for i, batch in enumerate(batches):
    assert batch.unroll is blocks[i].unroll
    # (N P)^-1/2
    expected = 4.0 / np.sqrt([2 * i + 1, 2 * i + 2])
    np.testing.assert_allclose(batch.weight, expected, rtol=1e-6)
    assert batch.weight.dtype == np.float32


def test_no_more_batches_than_asked_for_are_ahead():
  sampler = _Sampler(count=9)
  prefetcher = _make(sampler, size=2)
  thread = _start(lambda: prefetcher.run(_never))
  _until_waiting(prefetcher)
  assert sampler.drawn == 2
  assert _reward(prefetcher.get()) == 0.0
  # Woken by `get`, it draws one and waits again.
  wait_until(lambda: sampler.drawn == 3)
  _until_waiting(prefetcher)
  assert sampler.drawn == 3
  prefetcher.close()
  _join(thread)
  assert sampler.drawn == 3
  # The learner must release batch 0.
  assert sampler.released == [1, 2]


def test_batch_that_arrives_after_the_end_is_given_back():
  sampler = _Sampler(count=2)
  prefetcher = _make(sampler, size=2)
  draw = sampler.sample

  def close_meanwhile(wait=True):
    sample = draw(wait)
    prefetcher.close()
    return sample

  sampler.sample = close_meanwhile
  prefetcher.run(_never)
  assert sampler.drawn == 1
  assert sampler.released == [0]
  with pytest.raises(replay.StoreClosed):
    prefetcher.get()


def test_a_wait_counts_while_it_lasts_and_close_ends_it(monkeypatch):
  clock = py_types.SimpleNamespace(now=10.0)
  monkeypatch.setattr(
    prefetch,
    'time',
    py_types.SimpleNamespace(perf_counter=lambda: clock.now),
  )
  prefetcher = _make(_Sampler(count=0))
  errors = []

  def get():
    with pytest.raises(replay.StoreClosed, match='was closed') as error:
      prefetcher.get()
    errors.append(error)

  thread = _start(get)
  _until_waiting(prefetcher)
  clock.now = 13.0
  assert prefetcher.wait_seconds == 3.0
  prefetcher.close()
  _join(thread)
  assert len(errors) == 1
  clock.now = 20.0
  assert prefetcher.wait_seconds == 3.0
  get()
