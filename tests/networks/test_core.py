"""The LSTM against its equations and Flax's cell, with resets."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from seedrl_jax.networks import core

_SIZE, _INPUTS, _LENGTH, _BATCH = 5, 3, 7, 4


def _setup(dtype=jnp.float32):
  lstm = core.ResettingLSTM(_SIZE, dtype)
  x = jax.random.normal(jax.random.key(0), (_LENGTH, _BATCH, _INPUTS))
  first = jax.random.bernoulli(jax.random.key(1), 0.3, (_LENGTH, _BATCH))
  state = core.LSTMState(
    *jax.random.normal(jax.random.key(2), (2, _BATCH, _SIZE))
  )
  return lstm, lstm.init(jax.random.key(3), x, first, state), x, first, state


def test_equals_flax_cell_without_resets():
  lstm, variables, x, first, state = _setup()
  params = variables['params']
  # Our gates lie side by side; Flax keeps a matrix for each. Its forget gate
  # has no constant, so ours goes into the bias.
  cell_params = {}
  gates = zip(
    'ifgo',
    jnp.split(params['input']['kernel'], 4, -1),
    jnp.split(params['recurrent'], 4, -1),
    strict=True,
  )
  for gate, inputs, recurrent in gates:
    cell_params[f'i{gate}'] = {'kernel': inputs}
    bias = jnp.full(_SIZE, 1.0 if gate == 'f' else 0.0)
    cell_params[f'h{gate}'] = {'kernel': recurrent, 'bias': bias}
  cell = nn.LSTMCell(_SIZE)
  carry, expected = (state.cell, state.hidden), []
  for step in x:
    carry, y = cell.apply({'params': cell_params}, carry, step)
    expected.append(y)
  outputs, final = lstm.apply(variables, x, jnp.zeros_like(first), state)
  np.testing.assert_allclose(outputs, jnp.stack(expected), atol=1e-6)
  np.testing.assert_allclose(final.cell, carry[0], atol=1e-6)
  np.testing.assert_allclose(final.hidden, carry[1], atol=1e-6)


def test_first_forgets_everything_before_it():
  lstm, variables, x, first, state = _setup()
  first = jnp.zeros_like(first).at[3, 1].set(True)
  outputs, final = lstm.apply(variables, x, first, state)
  zeros = core.initial_lstm_state(_BATCH, _SIZE)
  fresh, fresh_final = lstm.apply(
    variables, x[3:], jnp.zeros_like(first[3:]), zeros
  )
  np.testing.assert_allclose(outputs[3:, 1], fresh[:, 1], atol=1e-6)
  np.testing.assert_allclose(final.cell[1], fresh_final.cell[1], atol=1e-6)
  assert not np.allclose(outputs[3:, 0], fresh[:, 0], atol=1e-3)


def test_state_before_first_has_no_influence_and_no_gradient():
  lstm, variables, x, first, state = _setup()
  first = first.at[0, 0].set(True).at[0, 1].set(False)
  gradient = jax.grad(lambda s: jnp.sum(lstm.apply(variables, x, first, s)[0]))
  for g in gradient(state):
    np.testing.assert_array_equal(g[0], 0.0)
    assert np.abs(g[1]).max() > 1e-4


def test_bfloat16_keeps_float32_state_and_parameters():
  lstm, variables, x, first, state = _setup(jnp.bfloat16)
  outputs, final = lstm.apply(variables, x, first, state)
  assert outputs.dtype == jnp.bfloat16
  chex.assert_type([*final, *jax.tree.leaves(variables)], jnp.float32)
  exact, _ = core.ResettingLSTM(_SIZE).apply(variables, x, first, state)
  np.testing.assert_allclose(outputs.astype(jnp.float32), exact, atol=0.05)
