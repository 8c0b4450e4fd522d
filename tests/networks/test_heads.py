"""Heads answer in float32 and start nearly uniform."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax.networks import heads


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_heads_are_float32(dtype):
  features = jnp.ones((3, 2, 8), dtype)
  for head, shape in (
    (heads.PolicyHead(5), (3, 2, 5)),
    (heads.BaselineHead(), (3, 2)),
  ):
    output, variables = head.init_with_output(jax.random.key(0), features)
    chex.assert_shape(output, shape)
    chex.assert_type([output, *jax.tree.leaves(variables)], jnp.float32)


def test_first_policy_is_nearly_uniform():
  features = jax.random.normal(jax.random.key(1), (20, 64))
  head = heads.PolicyHead(5)
  logits, _ = head.init_with_output(jax.random.key(0), features)
  np.testing.assert_allclose(jax.nn.softmax(logits), 0.2, atol=0.02)
