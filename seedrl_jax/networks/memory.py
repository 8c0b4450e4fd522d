"""What a network keeps between steps: the last frames, and an LSTM's state.

Environments send each frame once. Frames from before the episode are zero
(EnvPool's `stack_num` repeats the first frame instead).
"""

from typing import NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp


def stack_frames(
  frames: jax.Array, first: jax.Array, earlier: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Stacks each frame `[T, B, ..., C]` on the k - 1 before it.

  Episodes start at `first`, bool `[T, B]`. The state `earlier` is
  `[B, ..., C * (k - 1)]`, oldest frame first; zeros before any step. Returns
  stacks `[T, B, ..., C * k]`, oldest frame first, and the next state. Frames of
  earlier episodes are zero.
  """
  chex.assert_equal_shape_prefix([frames, first], 2)
  chex.assert_type(earlier, frames.dtype)
  length, batch, *shape, channels = frames.shape
  history = earlier.shape[-1] // channels
  # Steps and environments are one axis, [T * B]: a TPU would pad each of two.
  extended = jnp.concatenate([
    *jnp.split(earlier, history, axis=-1),
    frames.reshape((-1, *shape, channels)),
  ])
  if length > 1:
    # Lays the frames out once; XLA would do it for each delay. A single step
    # needs no copy.
    extended = jax.lax.optimization_barrier(extended)
  # A frame is of the step's episode if equally many episodes had started by
  # then; `earlier` frames continue until a FIRST.
  episode = jnp.cumsum(first, axis=0, dtype=jnp.int32)
  before = jnp.zeros((history, batch), jnp.int32)
  episodes = jnp.concatenate([before, episode])
  delays = range(history + 1)
  same = jnp.stack([episodes[i : i + length] == episode for i in delays], -1)
  # One selection over the whole stack: on CPU faster than one per delay.
  rows = length * batch
  stacked = jnp.stack(
    [extended[i * batch : i * batch + rows] for i in delays], -2
  )
  same = same.reshape((rows, *(1,) * len(shape), -1, 1))
  stacked = jnp.where(same, stacked, jnp.zeros((), frames.dtype))
  stacked = stacked.reshape((rows, *shape, -1))
  state = stacked[-batch:, ..., channels:]
  return stacked.reshape((length, batch, *stacked.shape[1:])), state


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
