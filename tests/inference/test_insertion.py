"""Tests for seedrl_jax/inference/insertion.py."""

import types

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax.inference import insertion
from seedrl_jax.replay import table_configs
from seedrl_jax.replay.embedded import store as store_lib
from tests.learner import toys

_WIDTH = 3


def _store():
  rules = table_configs.ReplayConfig(
    't', 'prioritized', max_size=9, samples_per_insert=0.0
  )
  return store_lib.EmbeddedStore([rules], toys.unroll_spec(), _WIDTH)


def _priorities(steps):
  assert steps.observation == ()
  chex.assert_shape(steps.reward, (2, _WIDTH))
  return jnp.sum(jnp.abs(steps.reward), axis=0)


def _insertion(store, priorities=_priorities):
  compiled = insertion.BlockPriorities(
    priorities, toys.unroll_spec(), _WIDTH, jax.devices()[1]
  )
  return insertion.Insertion(store.table('t'), compiled)


def _block(store, rewards):
  block = store.table('t').allocate()
  for leaf in block.leaves:
    leaf[...] = 0
  block.unroll.steps.reward[:] = rewards
  return block


def test_inserts_with_the_priorities_of_the_block():
  store = _store()
  insert = _insertion(store)
  insert(_block(store, [[1.0, -2.0, 0.5], [1.0, 2.0, 0.0]]))
  sample = store.table('t').sampler(30).sample()
  drawn = sample.blocks[0].unroll.steps.reward[0]
  expected = np.select([drawn == 1, drawn == -2], [2.0, 4.0], 0.5)
  np.testing.assert_array_equal(sample.priorities, expected)


def test_compiles_before_the_first_block_only():
  store = _store()
  traced = []

  def priorities(steps):
    traced.append(steps)
    return _priorities(steps)

  insert = _insertion(store, priorities)
  assert len(traced) == 1
  for _ in range(3):
    insert(_block(store, 1.0))
  assert len(traced) == 1


def test_without_priorities_all_are_worth_the_same():
  store = _store()
  insertion.Insertion(store.table('t'))(_block(store, 1.0))
  sample = store.table('t').sampler(9).sample()
  np.testing.assert_array_equal(sample.priorities, 1.0)


@pytest.fixture(name='clock')
def clock_fixture(monkeypatch):
  now = [100.0]
  monkeypatch.setattr(
    insertion,
    'time',
    types.SimpleNamespace(perf_counter=lambda: now[0]),
  )
  return now


def test_the_wait_is_for_the_store_alone(clock):
  class Writer:
    def insert(self, block, priorities):
      assert (block, priorities) == ('block', 'priorities')
      clock[0] += 7.0

  def priorities(block):
    clock[0] += 50.0
    return 'priorities'

  assert insertion.Insertion(Writer(), priorities)('block') == 7.0


def test_a_priority_that_is_not_finite_is_refused():
  store = _store()
  insert = _insertion(store)
  with pytest.raises(ValueError, match='Priorities must be finite'):
    insert(_block(store, np.nan))
  assert store.info()['t'].size == 0


def test_an_insert_under_way_is_seen_from_other_threads(clock):
  seen = []

  class Writer:
    def insert(self, block, priorities):
      assert (block, priorities) == ('block', None)
      for _ in range(2):
        clock[0] += 3.0
        seen.append(insert.waiting)

  insert = insertion.Insertion(Writer())
  assert insert.waiting == 0
  assert insert('block') == 6.0
  assert seen == [3.0, 6.0]
  assert insert.waiting == 0
