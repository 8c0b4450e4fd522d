"""Layout, alignment and recycling of blocks."""

import json

import chex
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.replay import base, blocks


@pytest.mark.parametrize('width', [1, 3, 32])
def test_leaves_are_aligned_contiguous_and_apart(toy, width):
  block = blocks.UnrollLayout(toy.spec()).new_block(width)
  for leaf in block.leaves:
    assert leaf.ctypes.data % 64 == 0
    assert leaf.flags.c_contiguous and leaf.flags.writeable
  for i, leaf in enumerate(block.leaves):
    leaf.fill(i)
  for i, leaf in enumerate(block.leaves):
    np.testing.assert_array_equal(leaf, np.full(leaf.shape, i))


def test_steps_are_time_major_and_the_rest_is_not(toy):
  block = blocks.UnrollLayout(toy.spec(steps=5)).new_block(3)
  for leaf in (block.unroll.steps.reward, block.unroll.steps.agent_output[0]):
    chex.assert_shape(leaf, (5, 3))
  chex.assert_shape(block.unroll.initial_core[0], (3, 4))


def test_empty_core_state(toy):
  spec = toy.spec()._replace(initial_core=())
  assert blocks.UnrollLayout(spec).new_block(2).unroll.initial_core == ()


def test_unroll_bytes(toy):
  # Steps of uint8 [2, 2], float32 [3], five 4-byte scalars, a byte; the rest.
  expected = 3 * (4 + 12 + 5 * 4 + 1) + 16 + 4
  assert blocks.UnrollLayout(toy.spec()).unroll_bytes == expected


def test_objects_are_refused(toy):
  spec = toy.spec()._replace(env_id=types.ArraySpec((), np.dtype(object)))
  with pytest.raises(ValueError, match='numbers only'):
    blocks.UnrollLayout(spec)


def test_pool_recycles(toy):
  pool = blocks.BlockPool(blocks.UnrollLayout(toy.spec()), 2)
  first, second = pool.take(), pool.take()
  assert first is not second
  pool.give_back([first])
  assert pool.take() is first
  assert pool.take() not in (first, second)


def test_the_signature_tells_how_unrolls_were_cut(toy):
  layout = blocks.UnrollLayout(toy.spec(steps=5), overlap=2)
  assert layout.stride == 3
  layout.check_signature('It', layout.signature())
  saved = json.loads(json.dumps(layout.signature()))
  layout.check_signature('It', saved)
  other = blocks.UnrollLayout(toy.spec(steps=5), overlap=4)
  with pytest.raises(
    base.CheckpointError,
    match=r'^It: a sequence begins every 3 steps in it and every 1 here',
  ):
    other.check_signature('It', saved)
