"""Tests masks on logits and values, and the mask as an input."""

import chex
import jax
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.configs import r2d2_base
from seedrl_jax.networks import action_masks, distributions, heads, network
from tests.networks import parameters

_ACTION = types.ActionSpec((2,), np.dtype(np.int32), (0, 0), (1, 2))
_VECTOR = types.ArraySpec((3,), np.dtype(np.float32))


def _module(key='m', only_mask=False, dtype='uint8', **changes):
  config = r2d2_base.get_config().network
  config.hidden_sizes = (8,)
  config.update(changes)
  mask = types.ArraySpec((5,), np.dtype(dtype))
  observation = {'m': mask} if only_mask else {'m': mask, 'x': _VECTOR}
  stream = types.StreamSpec(observation, _ACTION, 1, 'toy', action_mask=key)
  net = network.make_network(config, types.EnvSpec(stream, 2, 0))
  return heads.ActorCritic(net, distributions.make(_ACTION)), stream


def _shapes(module, stream):
  spec = types.EnvSpec(stream, 2, 0)
  init = network.make_init(module, module, spec)
  return jax.eval_shape(init, jax.random.key(0))


def test_legal_values_are_of_each_choice():
  mask = np.array([[0, 2, 1, 0, 0], [0, 0, 0, 0, -1], [0, 0, 0, 0, 0]])
  legal = action_masks.legal_values(mask, (2, 3))
  expected = [[0, 1, 1, 0, 0], [1, 1, 0, 0, 1], [1, 1, 1, 1, 1]]
  np.testing.assert_array_equal(legal, np.array(expected) > 0)
  values = np.ones((3, 5), np.float32)
  masked = action_masks.apply(values, legal)
  np.testing.assert_array_equal(masked == action_masks.ILLEGAL, ~legal)
  distribution = distributions.Categorical((2, 3), (2,))
  entropy = np.log([1, 2 * 1, 2 * 3])
  np.testing.assert_allclose(distribution.entropy(masked), entropy, atol=1e-6)


@pytest.mark.parametrize(
  'changes', [{}, {'frame_stack': 3}, {'lstm_size': 4, 'layer_norm': True}]
)
def test_a_mask_is_no_input_unless_wanted(changes):
  plain, stream = _module(**changes)
  shapes = _shapes(plain, stream)
  without = stream._replace(observation={'x': _VECTOR}, action_mask='')
  config = plain.network.config
  bare = network.make_network(config, types.EnvSpec(without, 2, 0))
  other = heads.ActorCritic(bare, plain.distribution)
  chex.assert_trees_all_equal_shapes(shapes, _shapes(other, without))
  seeing, _ = _module(use_action_mask=True, **changes)
  assert len(jax.tree.leaves(_shapes(seeing, stream))) > len(
    jax.tree.leaves(shapes)
  )
  rng = np.random.default_rng(0)
  mask = rng.integers(0, 2, (4, 2, 5)).astype(np.uint8)
  mask[..., 1] = mask[..., 3] = 1
  inputs = types.AgentInput(
    {'m': mask, 'x': rng.normal(size=(4, 2, 3)).astype(np.float32)},
    np.zeros((4, 2), np.float32),
    np.zeros((4, 2, 2), np.int32),
    np.zeros((4, 2), bool),
  )
  # Any number but 0 is legal, as an input, too.
  large = inputs.observation | {'m': mask * 200}
  for module, is_input in (plain, False), (seeing, True):
    params = parameters.draw(lambda m=module: _zeros(_shapes(m, stream)))
    apply = jax.jit(module.apply)

    def outputs(observation, module=module, params=params, apply=apply):
      core = module.initial_core(2)
      step = inputs._replace(observation=observation)
      return apply({'params': params}, step, core)[0]

    masked = outputs(inputs.observation)
    assert ((masked.policy == action_masks.ILLEGAL) == (mask == 0)).all()
    chex.assert_trees_all_equal(masked, outputs(large))
    full = outputs(inputs.observation | {'m': np.ones_like(mask)})
    same = np.array_equal(masked.baseline, full.baseline)
    assert same is not is_input
    if not is_input:
      chex.assert_trees_all_equal(
        np.asarray(masked.policy)[mask > 0], np.asarray(full.policy)[mask > 0]
      )


def _zeros(shapes):
  return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)


def test_nothing_but_a_mask():
  with pytest.raises(
    ValueError, match='use_action_mask=False: toy observes no'
  ):
    _module(only_mask=True)
  module, stream = _module(only_mask=True, use_action_mask=True)
  assert jax.tree.leaves(_shapes(module, stream))
