"""Tests frame stacks and the LSTM against references, with resets."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax.networks import memory
from tests.networks import parameters

_SIZE, _INPUTS, _LENGTH, _BATCH = 5, 3, 7, 4
_stack = jax.jit(memory.stack_frames)


def _reference(frames, first, num_frames):
  """One deque of frames per environment, zeroed at FIRST."""
  stacked = np.zeros((*frames.shape, num_frames), frames.dtype)
  for b in range(frames.shape[1]):
    history = [np.zeros_like(frames[0, b])] * num_frames
    for t in range(frames.shape[0]):
      if first[t, b]:
        history = [np.zeros_like(frames[0, b])] * num_frames
      history = [*history[1:], frames[t, b]]
      stacked[t, b] = np.stack(history, -1)
  return np.moveaxis(stacked, -1, -2).reshape((*frames.shape[:-1], -1))


@pytest.mark.parametrize(('num_frames', 'channels'), [(2, 1), (3, 2), (4, 1)])
@pytest.mark.parametrize('cuts', [(3, 8), (1, 2, 5, 8), ()])
def test_stacks_any_split_of_a_sequence(num_frames, channels, cuts):
  rng = np.random.default_rng(0)
  frames = rng.integers(1, 255, (11, 5, 3, 2, channels), np.uint8)
  first = rng.random((11, 5)) < 0.2
  first[4, 1] = first[5, 1] = True
  expected = _reference(frames, first, num_frames)
  state = np.zeros((5, 3, 2, channels * (num_frames - 1)), np.uint8)
  stacks = []
  for x, f in zip(np.split(frames, cuts), np.split(first, cuts), strict=True):
    stacked, state = _stack(x, f, state)
    stacks.append(stacked)
  assert state.dtype == jnp.uint8
  np.testing.assert_array_equal(np.concatenate(stacks), expected)
  np.testing.assert_array_equal(state, expected[-1, ..., channels:])


def _setup(dtype=jnp.float32):
  lstm = memory.ResettingLSTM(_SIZE, dtype)
  rng = np.random.default_rng(0)
  x = rng.normal(size=(_LENGTH, _BATCH, _INPUTS)).astype(np.float32)
  first = rng.random((_LENGTH, _BATCH)) < 0.3
  state = memory.LSTMState(
    *rng.normal(size=(2, _BATCH, _SIZE)).astype(np.float32)
  )
  key = jax.random.key(0)
  variables = parameters.draw(lstm.init, key, x, first, state)
  return jax.jit(lstm.apply), variables, x, first, state


def test_equals_flax_cell_without_resets():
  apply, variables, x, first, state = _setup()
  params = variables['params']
  # Our gates are side by side, Flax has a matrix for each. Its forget gate has
  # no constant, so ours goes into the bias.
  cell_params = {}
  gates = zip(
    'ifgo',
    np.split(params['input']['kernel'], 4, -1),
    np.split(params['recurrent'], 4, -1),
    np.split(params['input']['bias'], 4),
    strict=True,
  )
  for gate, inputs, recurrent, bias in gates:
    cell_params[f'i{gate}'] = {'kernel': inputs}
    bias = bias + (1.0 if gate == 'f' else 0.0)
    cell_params[f'h{gate}'] = {'kernel': recurrent, 'bias': bias}
  step = jax.jit(nn.LSTMCell(_SIZE).apply)
  carry, expected = (state.cell, state.hidden), []
  for inputs in x:
    carry, y = step({'params': cell_params}, carry, inputs)
    expected.append(y)
  outputs, final = apply(variables, x, np.zeros_like(first), state)
  np.testing.assert_allclose(outputs, np.stack(expected), atol=1e-6)
  np.testing.assert_allclose(final.cell, carry[0], atol=1e-6)
  np.testing.assert_allclose(final.hidden, carry[1], atol=1e-6)


def test_first_forgets_everything_before_it():
  apply, variables, x, first, state = _setup()
  first = np.zeros_like(first)
  first[3, 1] = True
  outputs, final = apply(variables, x, first, state)
  zeros = memory.LSTMState(*[jnp.zeros((_BATCH, _SIZE))] * 2)
  fresh, fresh_final = apply(variables, x[3:], np.zeros_like(first[3:]), zeros)
  np.testing.assert_allclose(outputs[3:, 1], fresh[:, 1], atol=1e-6)
  np.testing.assert_allclose(final.cell[1], fresh_final.cell[1], atol=1e-6)
  assert not np.allclose(outputs[3:, 0], fresh[:, 0], atol=1e-3)


def test_state_before_first_has_no_influence_and_no_gradient():
  apply, variables, x, first, state = _setup()
  first[0, :2] = True, False
  gradient = jax.grad(lambda s: jnp.sum(apply(variables, x, first, s)[0]))
  for g in jax.jit(gradient)(state):
    np.testing.assert_array_equal(g[0], 0.0)
    assert np.abs(g[1]).max() > 1e-4


def test_bfloat16_keeps_float32_state_and_parameters():
  apply, variables, x, first, state = _setup(jnp.bfloat16)
  outputs, final = apply(variables, x, first, state)
  assert outputs.dtype == jnp.bfloat16
  chex.assert_type([*final, *jax.tree.leaves(variables)], jnp.float32)
  exact, _ = _setup()[0](variables, x, first, state)
  np.testing.assert_allclose(np.float32(outputs), exact, atol=0.05)
