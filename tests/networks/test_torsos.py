"""Tests torsos: published shapes, their choice, and what they are given."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax.configs import base
from seedrl_jax.networks import keys, torsos


def _features(config, shape):
  """Returns only shapes and dtypes, without compilation."""
  torso = torsos.make_torso(config, shape)
  x = jax.ShapeDtypeStruct((2, *shape), jnp.float32)
  features, variables = jax.eval_shape(
    torso.init_with_output, jax.random.key(0), x
  )
  return features, variables['params']


def _count(params):
  return sum(x.size for x in jax.tree.leaves(params))


@pytest.mark.parametrize(
  ('name', 'size', 'parameters'),
  [
    # Counted by hand from the papers' kernels and biases.
    ('nature', 512, 8224 + 32832 + 36928 + (7 * 7 * 64 + 1) * 512),
    ('shallow', 256, 4112 + 8224 + (9 * 9 * 32 + 1) * 256),
    ('tiny', 64, 4112 + (10 * 10 * 16 + 1) * 64),
  ],
)
def test_convolutional_torsos_on_atari(name, size, parameters):
  config = base.get_config().network
  config.torso = name
  features, params = _features(config, (84, 84, 4))
  assert features.shape == (2, size)
  assert _count(params) == parameters


def test_deep_resnet_and_its_width():
  config = base.get_config().network
  config.torso, config.resnet_channels, config.width = 'resnet', (2, 4), 2
  features, params = _features(config, (12, 10, 3))
  assert features.shape == (2, 256)
  # 12x10 halved twice: 3x3 cells of 8 channels enter the dense layer.
  assert params['MLP_0']['Dense_0']['kernel'].shape == (3 * 3 * 8, 256)
  assert params['Conv_0']['kernel'].shape == (3, 3, 3, 4)
  assert sum('ResidualBlock' in name for name in params) == 4


def test_deep_resnet_as_published():
  config = base.get_config().network
  config.torso = 'resnet'
  _, params = _features(config, (32, 32, 4))
  kernels = [params[f'Conv_{i}']['kernel'].shape[-1] for i in range(3)]
  assert kernels == [16, 32, 32]


def test_dense_size_of_the_config_wins():
  config = base.get_config().network
  config.torso, config.dense_size = 'tiny', 24
  assert _features(config, (16, 16, 1))[0].shape == (2, 24)


@pytest.mark.parametrize(
  ('shape', 'torso'),
  [
    ((84, 84, 4), 'shallow'),
    ((64, 32, 3), 'shallow'),
    ((31, 64, 3), 'grid'),
    ((7, 7, 3), 'grid'),
    ((4, 7, 3), 'mlp'),
    ((10, 5), 'mlp'),
    ((4,), 'mlp'),
    ((), 'mlp'),
  ],
)
def test_auto_goes_by_shape(shape, torso):
  assert torsos.resolve_torso('auto', shape) == torso


def test_convolution_that_does_not_fit_is_refused():
  with pytest.raises(ValueError, match='at least 36 pixels'):
    torsos.resolve_torso('nature', (35, 84, 4))
  assert torsos.resolve_torso('nature', (36, 36, 4)) == 'nature'


def test_bfloat16_keeps_float32_parameters():
  config = base.get_config().network
  config.compute_dtype, config.dense_size = 'bfloat16', 8
  config.resnet_channels = (2,)
  for name in ('mlp', 'tiny', 'grid', 'resnet'):
    config.torso = name
    features, params = _features(config, (12, 12, 3))
    assert features.dtype == jnp.bfloat16
    assert {x.dtype for x in jax.tree.leaves(params)} == {np.dtype('float32')}


class Doubled(nn.Module):
  """A torso from outside."""

  config: Any

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    return nn.Dense(self.config.hidden_sizes[0])(x.reshape((len(x), -1)))


def flat(config: Any) -> Any:
  del config
  return nn.Module


def rank_three(config: Any) -> nn.Module:
  return nn.Dense(config.hidden_sizes[0])


@pytest.mark.parametrize('shape', [(3,), (4, 4, 1)])
def test_torso_from_outside_gets_every_leaf(shape):
  config = base.get_config().network
  config.torso, config.hidden_sizes = f'{__name__}:Doubled', (5,)
  features, params = _features(config, shape)
  assert features.shape == (2, 5)
  assert _count(params) == (np.prod(shape) + 1) * 5


@pytest.mark.parametrize(
  ('name', 'reason'),
  [
    ('flat', 'must return a Flax module, not type'),
    ('rank_three', r'must map \(2, 4, 4, 1\) to \(2, F\), not to'),
    ('absent', r'test_torsos.py\) has no function absent'),
  ],
)
def test_unusable_torso_from_outside_is_refused(name, reason):
  config = base.get_config().network
  config.torso = f'{__name__}:{name}'
  with pytest.raises(ValueError, match=reason) as caught:
    _features(config, (4, 4, 1))
  assert f'--config.network.torso={config.torso}: ' in str(caught.value)


@pytest.mark.parametrize('shape', [(6,), (84, 84, 4)])
@pytest.mark.parametrize('layer_norm', [False, True])
def test_activation_and_layer_norm(shape, layer_norm):
  config = base.get_config().network
  config.layer_norm, config.activation = layer_norm, 'tanh'
  config.torso = 'mlp' if len(shape) == 1 else 'tiny'
  torso = torsos.make_torso(config, shape)
  x = np.random.default_rng(0).normal(size=(2, *shape)).astype(np.float32)
  init = jax.jit(torso.init)
  variables = init(jax.random.key(0), x)
  small, large = (jax.jit(torso.apply)(variables, s * x) for s in (10, 1000))
  assert (small < 0).any()
  # A norm cancels the scale; without, tanh saturates.
  assert np.allclose(small, large, atol=1e-3) == layer_norm


def test_every_torso_of_the_keys_exists():
  convolutions = {*keys.TORSOS} - {'auto', 'mlp', 'resnet'}
  assert convolutions == torsos.CONV_TORSOS.keys()
