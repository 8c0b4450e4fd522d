"""Tests torsos: published shapes, their choice, and what they are given."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax.configs import base
from seedrl_jax.networks import torsos


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


def test_unknown_torso_is_refused():
  with pytest.raises(ValueError, match="'resnet'"):
    torsos.resolve_torso('resnest', (84, 84, 4))


def test_only_pictures_are_brought_into_blocks():
  config = base.get_config().network
  config.torso = 'tiny'
  assert torsos.first_strided_layer(config, (84, 84, 1)).stride == 8
  assert torsos.first_strided_layer(config, (31, 84, 1)) is None
  config.torso = 'resnet'
  assert torsos.first_strided_layer(config, (84, 84, 1)) is None


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


@pytest.mark.parametrize(
  ('shape', 'layout', 'expected'),
  [
    ((4, 84, 84), 'auto', (84, 84, 4)),
    ((3, 64, 64), 'auto', (64, 64, 3)),
    ((72, 96, 4), 'auto', (72, 96, 4)),
    ((7, 7, 3), 'auto', (7, 7, 3)),
    ((8, 8, 8), 'auto', (8, 8, 8)),
    ((4, 84, 84), 'channels_last', (4, 84, 84)),
    ((84, 84, 4), 'channels_first', (84, 4, 84)),
    ((10, 5), 'channels_first', (10, 5)),
    ((), 'auto', ()),
  ],
)
def test_channels_come_last_on_the_device(shape, layout, expected):
  x = np.arange(2 * 3 * np.prod(shape, dtype=int)).reshape((2, 3, *shape))
  y = torsos.to_device_layout(x, len(shape), layout)
  assert torsos.device_shape(shape, layout) == expected
  assert y.shape == (2, 3, *expected)
  if shape != expected:
    np.testing.assert_array_equal(np.asarray(y)[..., 1], x[:, :, 1])


def _prepared(x, dtype=jnp.float32):
  features = jax.jit(torsos.to_features, static_argnums=1)(x, dtype)
  assert features.dtype == dtype
  return np.asarray(features)


def test_pictures_are_scaled_to_one():
  x = np.full((2, 32, 32, 3), 255, np.uint8)
  y = _prepared(x)
  assert y.shape == x.shape
  np.testing.assert_allclose(y, 1.0, rtol=1e-6)


def test_bytes_of_a_vector_are_scaled():
  y = _prepared(np.array([[0, 51]], np.uint8))
  np.testing.assert_allclose(y, [[0.0, 0.2]], rtol=1e-6)


def test_grids_gain_a_one_hot_code():
  x = np.zeros((1, 7, 7, 3), np.uint8)
  x[0, 2, 3, 1] = 5
  y = _prepared(x)
  assert y.shape == (1, 7, 7, 3 * 16 + 3)
  code = y[0, 2, 3, :48].reshape((3, 16))
  np.testing.assert_array_equal(np.argmax(code, -1), [0, 5, 0])
  np.testing.assert_array_equal(np.sum(code, -1), 1.0)


def test_scalar_integers_become_one_hot():
  y = _prepared(np.array([3, 100], np.int32))
  np.testing.assert_array_equal(np.argmax(y[:, :-1], -1), [3, 63])
  np.testing.assert_allclose(y[:, -1], [3 / 64, 100 / 64])


@pytest.mark.parametrize('dtype', [jnp.bool_, jnp.float32])
def test_scalar_that_is_no_integer_stays_one_number(dtype):
  np.testing.assert_array_equal(_prepared(np.array([0, 1], dtype)), [0, 1])


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.int32])
def test_other_numbers_are_only_cast(dtype):
  y = _prepared(np.array([[-1, 20]], dtype), jnp.bfloat16)
  np.testing.assert_array_equal(y.astype(np.float32), [[-1.0, 20.0]])


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
