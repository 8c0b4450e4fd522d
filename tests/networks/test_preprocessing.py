"""Tests layouts and scaling of observation leaves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax.networks import preprocessing


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
  y = preprocessing.to_device_layout(x, len(shape), layout)
  assert preprocessing.device_shape(shape, layout) == expected
  assert y.shape == (2, 3, *expected)
  if shape != expected:
    np.testing.assert_array_equal(np.asarray(y)[..., 1], x[:, :, 1])


def _features(x, dtype=jnp.float32):
  features = jax.jit(preprocessing.to_features, static_argnums=1)(x, dtype)
  assert features.dtype == dtype
  return np.asarray(features)


def test_pictures_are_scaled_to_one():
  x = np.full((2, 32, 32, 3), 255, np.uint8)
  y = _features(x)
  assert y.shape == x.shape
  np.testing.assert_allclose(y, 1.0, rtol=1e-6)


def test_bytes_of_a_vector_are_scaled():
  y = _features(np.array([[0, 51]], np.uint8))
  np.testing.assert_allclose(y, [[0.0, 0.2]], rtol=1e-6)


def test_grids_gain_a_one_hot_code():
  x = np.zeros((1, 7, 7, 3), np.uint8)
  x[0, 2, 3, 1] = 5
  y = _features(x)
  assert y.shape == (1, 7, 7, 3 * 16 + 3)
  code = y[0, 2, 3, :48].reshape((3, 16))
  np.testing.assert_array_equal(np.argmax(code, -1), [0, 5, 0])
  np.testing.assert_array_equal(np.sum(code, -1), 1.0)


def test_scalar_integers_become_one_hot():
  y = _features(np.array([3, 100], np.int32))
  np.testing.assert_array_equal(np.argmax(y[:, :-1], -1), [3, 63])
  np.testing.assert_allclose(y[:, -1], [3 / 64, 100 / 64])


@pytest.mark.parametrize('dtype', [jnp.bool_, jnp.float32])
def test_scalar_that_is_no_integer_stays_one_number(dtype):
  np.testing.assert_array_equal(_features(np.array([0, 1], dtype)), [0, 1])


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.int32])
def test_other_numbers_are_only_cast(dtype):
  y = _features(np.array([[-1, 20]], dtype), jnp.bfloat16)
  np.testing.assert_array_equal(y.astype(np.float32), [[-1.0, 20.0]])
