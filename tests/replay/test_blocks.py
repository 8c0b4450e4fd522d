"""Layout, alignment and recycling of blocks."""

import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.replay import blocks


@pytest.mark.parametrize('width', [1, 3])
def test_leaves_are_aligned_contiguous_and_apart(toy, width):
  block = blocks.UnrollLayout(toy.spec()).new_block(width)
  for leaf in block.leaves:
    assert leaf.ctypes.data % 64 == 0
    assert leaf.flags.c_contiguous and leaf.flags.writeable
  for i, leaf in enumerate(block.leaves):
    leaf.fill(i)
  for i, leaf in enumerate(block.leaves):
    np.testing.assert_array_equal(leaf, np.full(leaf.shape, i))


def test_objects_are_refused(toy):
  spec = toy.spec()._replace(env_id=types.ArraySpec((), np.dtype(object)))
  with pytest.raises(ValueError, match='numbers only'):
    blocks.UnrollLayout(spec)
