"""Tests the heads: dtype, first policies, values by hand."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from seedrl_jax import types
from seedrl_jax.configs import base as base_config
from seedrl_jax.networks import distributions, heads
from seedrl_jax.networks import network as network_lib
from tests.networks import parameters

_OBSERVATION = types.ArraySpec((4,), np.dtype(np.float32))


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_heads_are_float32(dtype):
  features = jax.ShapeDtypeStruct((3, 2, 8), dtype)
  for head, shape in (
    (heads.PolicyHead(5), (3, 2, 5)),
    (heads.PolicyHead(6, num_free=3), (3, 2, 6)),
    (heads.BaselineHead(), (3, 2)),
    (heads.QHead(5, 4, dueling=True), (3, 2, 5)),
    (heads.QHead(5, 4, dueling=False), (3, 2, 5)),
  ):
    output, variables = jax.eval_shape(
      head.init_with_output, jax.random.key(0), features
    )
    chex.assert_shape(output, shape)
    chex.assert_type([output, *jax.tree.leaves(variables)], jnp.float32)


def test_first_weights_are_orthogonal_with_their_gains():
  config = base_config.get_config().network
  config.hidden_sizes = (16, 12)
  observation = types.ArraySpec((5,), np.dtype(np.float32))
  spec = types.EnvSpec(
    types.StreamSpec(observation, types.discrete(4), 1, 'toy'), 2, 0
  )
  module = heads.ActorCritic(
    network_lib.make_network(config, spec), distributions.Categorical((4,))
  )
  init = network_lib.make_init(module, module, spec)
  params = jax.jit(init)(jax.random.key(0))
  gains = {}
  for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
    if leaf.ndim == 1:
      assert not leaf.any()
      continue
    gains[path[0].key, leaf.shape] = np.linalg.svd(leaf, compute_uv=False)
  assert len(gains) == 4
  for (name, _), values in gains.items():
    gain = {'policy': 0.01, 'baseline': 1.0}.get(name, np.sqrt(2.0))
    np.testing.assert_allclose(values, gain, rtol=1e-5)


def test_first_policy_is_nearly_uniform():
  features = np.random.default_rng(0).normal(size=(20, 64))
  head = heads.PolicyHead(5)
  logits, _ = jax.jit(head.init_with_output)(jax.random.key(0), features)
  np.testing.assert_allclose(jax.nn.softmax(logits), 0.2, atol=0.02)


def test_no_state_changes_a_free_deviation():
  features = np.random.default_rng(0).normal(size=(20, 8))
  head = heads.PolicyHead(6, num_free=3)
  variables = parameters.draw(head.init, jax.random.key(0), features)
  params = jax.jit(head.apply)(variables, features)
  log = variables['params']['log_deviation']
  np.testing.assert_array_equal(params[:, 3:], np.tile(log, (20, 1)))
  assert np.std(params[:, :3], axis=0).min() > 0


@pytest.mark.parametrize('separate', [False, True])
def test_baseline_has_its_own_network_if_separate(separate):
  config = base_config.get_config().network
  config.lstm_size = 3
  spec = types.EnvSpec(
    types.StreamSpec(_OBSERVATION, types.discrete(2), 1, ''), 1, 0
  )
  network = network_lib.make_network(config, spec)
  distribution = distributions.make(spec.action)
  module = heads.ActorCritic(network, distribution, separate)
  init = network_lib.make_init(module, module, spec)
  params = parameters.draw(init, jax.random.key(0))
  inputs, core = network_lib.dummy_inputs(spec), module.initial_core(1)

  def baseline(params):
    outputs, new_core = module.apply({'params': params}, inputs, core)
    chex.assert_trees_all_equal_shapes_and_dtypes(core, new_core)
    return outputs.baseline.sum()

  gradient = jax.jit(jax.grad(baseline))(params)
  used = optax.tree.norm(gradient['network']) > 0
  assert used == (not separate)
  assert ('baseline_network' in params) == separate


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
