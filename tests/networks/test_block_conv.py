"""Convolutions over blocks, however they are worked out, are convolutions."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax.networks import block_conv, frame_stack

_LENGTH, _BATCH, _FRAMES = 5, 2, 3


@pytest.mark.parametrize(
  ('layer', 'height', 'width'),
  [
    (block_conv.ConvLayer(5, 8, 4), 21, 18),
    (block_conv.ConvLayer(3, 8, 8), 20, 16),
    # So many products that they are no longer added up, but gathered first.
    (block_conv.ConvLayer(7, 6, 2), 9, 10),
  ],
)
def test_strided_conv_is_a_convolution(layer, height, width):
  conv = block_conv.StridedConv(layer)
  x = jax.random.normal(jax.random.key(0), (3, height, width, 2))
  params = jax.jit(conv.init)(jax.random.key(1), x)['params']
  params['bias'] = jnp.arange(layer.channels, dtype=jnp.float32)

  def ours(params, x):
    return conv.apply({'params': params}, x)

  def reference(params, x):
    y = jax.lax.conv_general_dilated(
      x,
      params['kernel'],
      (layer.stride, layer.stride),
      'VALID',
      dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
    )
    return y + params['bias']

  chex.assert_trees_all_close(ours(params, x), reference(params, x), atol=1e-5)
  gradients = [
    jax.jit(
      jax.grad(lambda p, x, f=f: jnp.sum(jnp.sin(f(p, x))), argnums=(0, 1))
    )(params, x)
    for f in (ours, reference)
  ]
  chex.assert_trees_all_close(*gradients, atol=1e-4)


def test_blocks_of_stacked_frames_are_stacked_images():
  layer = block_conv.ConvLayer(5, 8, 4)
  frames = jax.random.normal(jax.random.key(0), (3, 2, 21, 18, 2))
  images = jnp.concatenate(list(frames), axis=-1)
  blocks = jnp.concatenate(
    [block_conv.space_to_depth(x, layer) for x in frames], axis=-1
  )
  variables = block_conv.StridedConv(layer).init(jax.random.key(1), images)
  chex.assert_trees_all_close(
    block_conv.StridedConv(layer, num_frames=3).apply(variables, blocks),
    block_conv.StridedConv(layer).apply(variables, images),
    atol=1e-5,
  )


def _history(layer, dtype=jnp.float32):
  """Returns the blocks of some frames with a reset in the middle."""
  keys = jax.random.split(jax.random.key(0))
  frames = jax.random.normal(keys[0], (_LENGTH, _BATCH, 18, 17, 2), dtype)
  blocks = block_conv.space_to_depth(frames, layer)
  kept = jax.random.normal(
    keys[1], (*blocks.shape[1:-1], 2 * blocks.shape[-1]), dtype
  )
  # Environment 0 has no reset, environment 1 has two.
  first = jnp.zeros((_LENGTH, _BATCH), bool).at[jnp.array([2, 3]), 1].set(True)
  return frame_stack.frame_history(blocks, first, kept)[0]


def _both_ways(conv, history):
  """Returns functions of parameters and frames, `[T * B, ...]`."""

  def single(params, frames):
    return conv.apply({'params': params}, frames, history.same)

  def stacked(params, frames):
    x = frame_stack.stack_history(history._replace(frames=frames))
    x = x.reshape((-1, *x.shape[2:]))
    return conv.apply({'params': params}, x)

  return single, stacked


@pytest.mark.parametrize(
  'layer',
  [block_conv.ConvLayer(5, 8, 8), block_conv.ConvLayer(3, 8, 4)],
  ids=['one block', 'four blocks'],
)
def test_single_frames_are_convolved_as_their_stacks(layer):
  history = _history(layer)
  conv = block_conv.StridedConv(layer, _FRAMES)
  variables = conv.init(jax.random.key(1), *history)
  kernel = variables['params']['kernel']
  chex.assert_shape(kernel, (8, 8, 2 * _FRAMES, layer.channels))
  functions = _both_ways(conv, history)
  params = {'kernel': kernel, 'bias': jnp.arange(layer.channels, dtype=float)}
  outputs = [f(params, history.frames) for f in functions]
  chex.assert_shape(outputs[0], (_LENGTH * _BATCH, ..., layer.channels))
  chex.assert_trees_all_close(*outputs, atol=1e-5)
  gradients = [
    jax.jit(
      jax.grad(lambda p, x, f=f: jnp.sum(jnp.sin(f(p, x))), argnums=(0, 1))
    )(params, history.frames)
    for f in functions
  ]
  chex.assert_trees_all_close(*gradients, atol=1e-4)


def test_initial_parameters_do_not_depend_on_the_way():
  layer = block_conv.ConvLayer(5, 8, 8)
  history = _history(layer)
  conv = block_conv.StridedConv(layer, _FRAMES)
  stack = frame_stack.stack_history(history)[0]
  chex.assert_trees_all_equal(
    conv.init(jax.random.key(1), *history), conv.init(jax.random.key(1), stack)
  )


def test_frames_of_other_episodes_have_no_influence():
  layer = block_conv.ConvLayer(5, 8, 8)
  history = _history(layer)
  conv = block_conv.StridedConv(layer, _FRAMES)
  variables = conv.init(jax.random.key(1), *history)
  y = conv.apply(variables, *history)
  # Environment 1 starts anew at step 2, which is frame 4 of the history.
  other = history._replace(frames=history.frames.at[:4].set(np.nan))
  z = conv.apply(variables, *other)
  y, z = (a.reshape((_LENGTH, _BATCH, -1)) for a in (y, z))
  np.testing.assert_array_equal(y[2:, 1], z[2:, 1])
  assert np.isnan(z[:2, 1]).all()
  assert np.isnan(z[2:4, 0]).all()


def test_bfloat16_sums_are_as_exact_as_one_product():
  layer = block_conv.ConvLayer(5, 8, 8)
  history = _history(layer)
  history = history._replace(frames=history.frames.astype(jnp.bfloat16))
  conv = block_conv.StridedConv(layer, _FRAMES, jnp.bfloat16)
  params = conv.init(jax.random.key(1), *history)['params']
  chex.assert_type(jax.tree.leaves(params), jnp.float32)
  exact = block_conv.StridedConv(layer, _FRAMES).apply(
    {'params': params}, *history
  )
  errors = []
  for f in _both_ways(conv, history):
    y = f(params, history.frames)
    assert y.dtype == jnp.bfloat16
    errors.append(float(jnp.abs(y.astype(jnp.float32) - exact).mean()))
  assert errors[0] < 1.1 * errors[1] < 0.05


@pytest.mark.parametrize(
  ('layer', 'length', 'suits'),
  [
    (block_conv.ConvLayer(16, 8, 8), 21, True),
    (block_conv.ConvLayer(16, 8, 8), 4, True),
    # Most of the work would be for nothing.
    (block_conv.ConvLayer(16, 8, 8), 1, False),
    # The products would be sixteen times the frames.
    (block_conv.ConvLayer(16, 8, 4), 21, False),
  ],
)
def test_choice_goes_by_shape(layer, length, suits):
  assert block_conv.suits_single_frames(layer, 1, 4, length) == suits
