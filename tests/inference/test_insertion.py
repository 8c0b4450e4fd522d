"""Tests for seedrl_jax/inference/insertion.py."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax.inference import insertion
from seedrl_jax.replay import base, embedded
from tests.learner import toys

_WIDTH = 3


def _store():
  rules = base.TableConfig(
    't', 'prioritized', max_size=9, samples_per_insert=0.0
  )
  return embedded.EmbeddedStore([rules], toys.unroll_spec(), _WIDTH)


def _priorities(steps):
  assert steps.observation == ()
  chex.assert_shape(steps.reward, (2, _WIDTH))
  return jnp.sum(jnp.abs(steps.reward), axis=0)


def _insertion(store, priorities=_priorities):
  return insertion.PrioritizedInsertion(
    store.writer('t'),
    priorities,
    toys.unroll_spec(),
    _WIDTH,
    jax.devices()[1],
  )


def _block(store, rewards):
  block = store.writer('t').allocate()
  for leaf in block.leaves:
    leaf[...] = 0
  block.unroll.steps.reward[:] = rewards
  return block


def test_inserts_with_the_priorities_of_the_block():
  store = _store()
  insert = _insertion(store)
  insert(_block(store, [[1.0, -2.0, 0.5], [1.0, 2.0, 0.0]]))
  sample = store.sampler('t', 30).sample(0)
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


def test_a_priority_that_is_not_finite_is_refused():
  store = _store()
  insert = _insertion(store)
  with pytest.raises(ValueError, match='Priorities must be finite'):
    insert(_block(store, np.nan))
  assert store.info()['t'].size == 0
