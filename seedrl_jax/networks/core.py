"""The recurrent core: an LSTM over time that resets at episode starts."""

from typing import NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp


class LSTMState(NamedTuple):
  """float32 `[B, H]` each, whatever the compute dtype."""

  hidden: jax.Array
  cell: jax.Array


class ResettingLSTM(nn.Module):
  """LSTM (Hochreiter and Schmidhuber, 1997), zeroed before each FIRST step.

  Unlike Flax's cells, it multiplies the inputs of all steps at once, outside
  the scan, which makes long unrolls faster. Parameters and state are float32.
  """

  size: int  # hidden units, H
  dtype: jax.typing.DTypeLike = jnp.float32  # of the matrix products

  @nn.compact
  def __call__(
    self, inputs: jax.Array, first: jax.Array, state: LSTMState
  ) -> tuple[jax.Array, LSTMState]:
    """Maps inputs `[T, B, F]` to outputs `[T, B, H]` and the last state.

    `first` is bool `[T, B]`, whether an episode starts at the step.
    """
    chex.assert_equal_shape_prefix([inputs, first], 2)
    chex.assert_shape(state, (inputs.shape[1], self.size))
    projected = nn.Dense(4 * self.size, dtype=self.dtype, name='input')(inputs)
    recurrent = self.param(
      'recurrent',
      nn.initializers.orthogonal(),
      (self.size, 4 * self.size),
      jnp.float32,
    ).astype(self.dtype)

    def step(
      carry: LSTMState, xs: tuple[jax.Array, jax.Array]
    ) -> tuple[LSTMState, jax.Array]:
      x, start = xs
      hidden, cell = jax.tree.map(
        lambda s: jnp.where(start[:, None], 0.0, s), carry
      )
      gates = x + jnp.dot(hidden.astype(self.dtype), recurrent)
      i, f, g, o = jnp.split(gates.astype(jnp.float32), 4, axis=-1)
      # The forget bias of 1 lets it remember from the start (Jozefowicz et al.,
      # 2015).
      cell = nn.sigmoid(f + 1.0) * cell + nn.sigmoid(i) * jnp.tanh(g)
      hidden = nn.sigmoid(o) * jnp.tanh(cell)
      return LSTMState(hidden, cell), hidden.astype(self.dtype)

    # Unrolls a single step: acting needs no loop.
    final, outputs = jax.lax.scan(
      step, state, (projected, first), unroll=inputs.shape[0] == 1
    )
    return outputs, final


def initial_lstm_state(batch: int, size: int) -> LSTMState:
  """Returns zeros `[batch, size]`."""
  return LSTMState(jnp.zeros((batch, size)), jnp.zeros((batch, size)))
