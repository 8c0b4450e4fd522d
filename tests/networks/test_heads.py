"""Tests the heads: dtype, first policies, values by hand."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax.networks import heads
from tests.networks import parameters


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_heads_are_float32(dtype):
  features = jax.ShapeDtypeStruct((3, 2, 8), dtype)
  for head, shape in (
    (heads.PolicyHead(5), (3, 2, 5)),
    (heads.BaselineHead(), (3, 2)),
    (heads.QHead(5, 4, dueling=True), (3, 2, 5)),
    (heads.QHead(5, 4, dueling=False), (3, 2, 5)),
  ):
    output, variables = jax.eval_shape(
      head.init_with_output, jax.random.key(0), features
    )
    chex.assert_shape(output, shape)
    chex.assert_type([output, *jax.tree.leaves(variables)], jnp.float32)


def test_first_policy_is_nearly_uniform():
  features = np.random.default_rng(0).normal(size=(20, 64))
  head = heads.PolicyHead(5)
  logits, _ = jax.jit(head.init_with_output)(jax.random.key(0), features)
  np.testing.assert_allclose(jax.nn.softmax(logits), 0.2, atol=0.02)


@pytest.mark.parametrize('hidden_size', [0, 6])
def test_dueling_head_by_hand(hidden_size):
  features = np.random.default_rng(0).normal(size=(3, 2, 8))
  head = heads.QHead(5, hidden_size, dueling=True)
  variables = parameters.draw(head.init, jax.random.key(0), features)
  q = jax.jit(head.apply)(variables, features)
  params = variables['params']
  # The mean cancels a bias of the advantages.
  assert set(params['advantage']) == {'kernel'}

  def stream(name):
    x = features
    for layer in (f'{name}_hidden', name) if hidden_size else (name,):
      x = x @ params[layer]['kernel'] + params[layer].get('bias', 0.0)
      if layer != name:
        x = np.maximum(x, 0.0)
    return x

  advantage = stream('advantage')
  expected = stream('value') + advantage - advantage.mean(-1, keepdims=True)
  np.testing.assert_allclose(q, expected, rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(
    np.mean(q, -1, keepdims=True), stream('value'), rtol=1e-4, atol=1e-5
  )


@pytest.mark.parametrize('hidden_size', [0, 6])
def test_plain_head_has_the_layers_it_is_asked_for(hidden_size):
  head = heads.QHead(5, hidden_size, dueling=False)
  variables = jax.eval_shape(head.init, jax.random.key(0), jnp.ones((3, 8)))
  shapes = jax.tree.map(np.shape, variables['params'])
  expected = {'q': {'kernel': (hidden_size or 8, 5), 'bias': (5,)}}
  if hidden_size:
    expected['q_hidden'] = {'kernel': (8, hidden_size), 'bias': (hidden_size,)}
  assert shapes == expected
