"""Tests for seedrl_jax/inference/insertion.py."""

import types

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax.inference import insertion
from seedrl_jax.replay import base, table_configs
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


def _insertion(writer, priorities=_priorities):
  agent = types.SimpleNamespace(initial_priorities=priorities)
  return insertion.Insertion(
    writer, agent, toys.unroll_spec(), _WIDTH, jax.devices()[1]
  )


def _block(store, rewards):
  block = store.table('t').allocate()
  for leaf in block.leaves:
    leaf[...] = 0
  block.unroll.steps.reward[:] = rewards
  return block


def test_inserts_with_the_priorities_of_the_block():
  store = _store()
  insert = _insertion(store.table('t'))
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

  insert = _insertion(store.table('t'), priorities)
  assert len(traced) == 1
  for _ in range(3):
    insert(_block(store, 1.0))
  assert len(traced) == 1


def test_without_priorities_all_are_worth_the_same():
  store = _store()
  _insertion(store.table('t'), None)(_block(store, 1.0))
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


class _Writer:
  """Takes three seconds twice; notes `waited` each time."""

  def __init__(self, clock):
    self.clock, self.seen, self.insertion = clock, [], None

  def insert(self, block, priorities):
    del block, priorities
    for _ in range(2):
      self.clock[0] += 3.0
      self.seen.append(self.insertion.waited)


@pytest.mark.parametrize('has_priorities', [False, True])
def test_the_wait_is_for_the_store_alone(clock, has_priorities):
  writer = _Writer(clock)
  insert = writer.insertion = _insertion(writer, None)

  def priorities(steps):
    clock[0] += 50.0

  if has_priorities:
    insert._priorities = priorities
  block = types.SimpleNamespace(unroll=toys.unroll_spec())
  assert insert.waited == 0
  insert(block)
  assert insert.waited == 6
  insert(block)
  assert insert.waited == 12
  assert writer.seen == [3, 6, 9, 12]


def test_the_wait_of_a_store_that_is_closed_is_counted(clock):
  class Writer:
    def insert(self, block, priorities):
      clock[0] += 5.0
      raise base.StoreClosed('closed')

  insert = _insertion(Writer(), None)
  with pytest.raises(base.StoreClosed):
    insert('block')
  assert insert.waited == 5


def test_a_priority_that_is_not_finite_is_refused():
  store = _store()
  insert = _insertion(store.table('t'))
  with pytest.raises(ValueError, match='Priorities must be finite'):
    insert(_block(store, np.nan))
  assert store.info()['t'].size == 0
