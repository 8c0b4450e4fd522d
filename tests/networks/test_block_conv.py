"""Tests convolutions over blocks against ordinary ones."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax.networks import block_conv, frame_stack
from tests.networks import parameters

_LENGTH, _BATCH, _FRAMES = 5, 2, 3


def _normal(*shape):
  return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def _variables(conv, *args):
  return parameters.draw(conv.init, jax.random.key(1), *args)


@pytest.mark.parametrize(
  ('layer', 'height', 'width'),
  [
    (block_conv.ConvLayer(5, 8, 4), 21, 18),
    (block_conv.ConvLayer(3, 8, 8), 20, 16),
    # So many products that it gathers windows instead of adding up.
    (block_conv.ConvLayer(7, 6, 2), 9, 10),
  ],
)
def test_strided_conv_is_a_convolution(layer, height, width):
  conv = block_conv.StridedConv(layer)
  x = _normal(3, height, width, 2)
  params = _variables(conv, x)['params']

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

  _check_alike(ours, reference, params, x)


def _check_alike(ours, reference, params, x):
  """Compares outputs and gradients; returns one of the outputs."""

  def run(f):
    def total(params, x):
      y = f(params, x)
      return jnp.sum(jnp.sin(y)), y

    gradient = jax.grad(total, argnums=(0, 1), has_aux=True)
    return jax.jit(gradient)(params, x)

  (gradients, output), (expected_gradients, expected) = map(
    run, (ours, reference)
  )
  chex.assert_trees_all_close(output, expected, atol=1e-5)
  chex.assert_trees_all_close(gradients, expected_gradients, atol=1e-4)
  return output


def test_blocks_of_stacked_frames_are_stacked_images():
  layer = block_conv.ConvLayer(5, 8, 4)
  frames = _normal(3, 2, 21, 18, 2)
  images = np.concatenate(frames, axis=-1)
  blocks = np.concatenate(
    [block_conv.space_to_depth(x, layer) for x in frames], axis=-1
  )
  stacked = block_conv.StridedConv(layer, num_frames=3)
  plain = block_conv.StridedConv(layer)
  variables = _variables(plain, images)
  chex.assert_trees_all_close(
    jax.jit(stacked.apply)(variables, blocks),
    jax.jit(plain.apply)(variables, images),
    atol=1e-5,
  )


def _history(layer):
  """Returns the blocks of some frames with a reset in the middle."""
  frames = _normal(_FRAMES - 1 + _LENGTH, _BATCH, 18, 17, 2)
  blocks = block_conv.space_to_depth(frames, layer)
  *kept, blocks = np.split(blocks, range(1, _FRAMES))
  kept = np.concatenate(kept, axis=-1)[0]
  # Only environment 1 has a reset.
  first = np.zeros((_LENGTH, _BATCH), bool)
  first[2:4, 1] = True
  return jax.jit(frame_stack.frame_history)(blocks, first, kept)[0]


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
  params = _variables(conv, *history)['params']
  chex.assert_shape(params['kernel'], (8, 8, 2 * _FRAMES, layer.channels))
  output = _check_alike(*_both_ways(conv, history), params, history.frames)
  chex.assert_shape(output, (_LENGTH * _BATCH, ..., layer.channels))


def test_initial_parameters_do_not_depend_on_the_way():
  layer = block_conv.ConvLayer(5, 8, 8)
  history = _history(layer)
  conv = block_conv.StridedConv(layer, _FRAMES)
  stack = jax.jit(frame_stack.stack_history)(history)[0]
  init = jax.jit(conv.init)
  chex.assert_trees_all_equal(
    init(jax.random.key(1), *history), init(jax.random.key(1), stack)
  )


def test_frames_of_other_episodes_have_no_influence():
  layer = block_conv.ConvLayer(5, 8, 8)
  history = _history(layer)
  conv = block_conv.StridedConv(layer, _FRAMES)
  apply, variables = jax.jit(conv.apply), _variables(conv, *history)
  y = apply(variables, *history)
  # Environment 1 restarts at step 2, frame 4 of the history.
  frames = np.array(history.frames)
  frames[:4] = np.nan
  z = apply(variables, frames, history.same)
  y, z = (np.reshape(a, (_LENGTH, _BATCH, -1)) for a in (y, z))
  np.testing.assert_array_equal(y[2:, 1], z[2:, 1])
  assert np.isnan(z[:2, 1]).all()
  assert np.isnan(z[2:4, 0]).all()


def test_bfloat16_sums_are_as_exact_as_one_product():
  layer = block_conv.ConvLayer(5, 8, 8)
  history = _history(layer)
  history = history._replace(frames=history.frames.astype(jnp.bfloat16))
  conv = block_conv.StridedConv(layer, _FRAMES, jnp.bfloat16)
  params = _variables(conv, *history)['params']
  chex.assert_type(jax.tree.leaves(params), jnp.float32)
  exact = jax.jit(block_conv.StridedConv(layer, _FRAMES).apply)(
    {'params': params}, *history
  )
  errors = []
  for f in _both_ways(conv, history):
    y = jax.jit(f)(params, history.frames)
    assert y.dtype == jnp.bfloat16
    errors.append(np.abs(np.float32(y) - np.float32(exact)).mean())
  assert errors[0] < 1.1 * errors[1] < 0.05


@pytest.mark.parametrize(
  ('layer', 'length', 'suits'),
  [
    (block_conv.ConvLayer(16, 8, 8), 21, True),
    (block_conv.ConvLayer(16, 8, 8), 4, True),
    # Most of the work would be wasted.
    (block_conv.ConvLayer(16, 8, 8), 1, False),
    # The products would be sixteen times the frames.
    (block_conv.ConvLayer(16, 8, 4), 21, False),
  ],
)
def test_choice_goes_by_shape(layer, length, suits):
  assert block_conv.suits_single_frames(layer, 1, 4, length) == suits
