"""Tests convolutions over blocks against ordinary ones."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax.networks import block_conv, torsos
from tests.networks import parameters


def _normal(*shape):
  return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize('num_frames', [None, 3])
@pytest.mark.parametrize(
  ('layer', 'height', 'width'),
  [
    (block_conv.ConvLayer(5, 8, 4), 21, 18),
    # A block is a window.
    (block_conv.ConvLayer(3, 8, 8), 20, 16),
    # So many products that XLA convolves.
    (block_conv.ConvLayer(70, 6, 2), 9, 10),
  ],
)
def test_strided_conv_is_a_convolution(layer, height, width, num_frames):
  conv = block_conv.StridedConv(layer, num_frames)
  frames = _normal(num_frames or 1, 3, height, width, 2)
  images = np.concatenate(frames, axis=-1)

  def blocks(images):
    frames = jnp.split(images, num_frames or 1, axis=-1)
    return jnp.concatenate(
      [block_conv.space_to_depth(x, layer) for x in frames], axis=-1
    )

  def ours(params, images):
    x = images if num_frames is None else blocks(images)
    return conv.apply({'params': params}, x)

  def within_loop(params, images):
    with block_conv.for_loops():
      return ours(params, images)

  def reference(params, images):
    y = jax.lax.conv_general_dilated(
      images,
      params['kernel'],
      (layer.stride, layer.stride),
      'VALID',
      dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
    )
    return y + params['bias']

  def run(f):
    def total(params, x):
      y = f(params, x)
      return jnp.sum(jnp.sin(y)), y

    gradient = jax.grad(total, argnums=(0, 1), has_aux=True)
    return jax.jit(gradient)(params, images)

  x = images if num_frames is None else blocks(images)
  params = parameters.draw(conv.init, jax.random.key(1), x)['params']
  expected_gradients, expected = run(reference)
  for function in (ours, within_loop):
    gradients, output = run(function)
    chex.assert_trees_all_close(output, expected, atol=1e-5)
    chex.assert_trees_all_close(gradients, expected_gradients, atol=1e-4)


@pytest.mark.parametrize(
  'conv',
  [
    block_conv.StridedConv(block_conv.ConvLayer(1, 4, 2), dtype=jnp.bfloat16),
    torsos.Conv(1, False, jnp.bfloat16),
    torsos.Conv(1, True, jnp.bfloat16),
  ],
  ids=['strided', 'plain', 'pooled'],
)
def test_bias_gradient_in_bfloat16_is_summed_in_float32(conv):
  x = np.zeros((32, 30, 30, 1), np.float32)
  params = parameters.draw(conv.init, jax.random.key(0), x)
  y, gradient = jax.jit(
    lambda params, x: jax.vjp(lambda p: conv.apply(p, x), params)
  )(params, x)
  # As many as a loss gives, which are exact in bfloat16.
  cotangent = jnp.full(y.shape, 0.375, y.dtype)
  (actual,) = jax.jit(gradient)(cotangent)
  bias = actual['params']['bias']
  np.testing.assert_allclose(bias, [0.375 * y.size], rtol=1e-5)
