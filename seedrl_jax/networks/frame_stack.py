"""Frame stacking in the agent's own state, on the device.

Environments send each frame once; `network.Network` puts the last k together
here, for one step and for an unroll alike. Frames from before the episode's
start are zero (EnvPool's `stack_num` repeats the first frame there instead;
from the episode's k-th frame on the two are equal).
"""

import chex
import jax
import jax.numpy as jnp


def initial_frames(
  batch: int, shape: tuple[int, ...], dtype: jnp.dtype, num_frames: int
) -> jax.Array:
  """Returns the state before any step: frames of zeros.

  Args:
    batch: number of environments, B.
    shape: of one frame, rank >= 1; frames are stacked on its last axis.
    dtype: of a frame.
    num_frames: frames per stack, k.

  Returns:
    `[B, ..., C * (k - 1)]`, oldest frame first.
  """
  *rest, channels = shape
  return jnp.zeros((batch, *rest, channels * (num_frames - 1)), dtype)


def stack_frames(
  frames: jax.Array, first: jax.Array, kept: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Stacks each frame on those before it in the same episode.

  Args:
    frames: `[T, B, ..., C]`.
    first: bool `[T, B]`, whether an episode starts at the step.
    kept: `[B, ..., C * (k - 1)]`, the state from before the first step.

  Returns:
    stacks `[T, B, ..., C * k]`, oldest frame first and zero where the frame
    is of an earlier episode, and the state after the last step.
  """
  chex.assert_equal_shape_prefix([frames, first], 2)
  chex.assert_type(kept, frames.dtype)
  length, channels = frames.shape[0], frames.shape[-1]
  history = kept.shape[-1] // channels
  earlier = jnp.stack(jnp.split(kept, history, axis=-1))
  # A frame belongs to the step's episode where as many episodes had started
  # by then; frames of `kept` count as the one that goes on until a FIRST.
  episode = jnp.cumsum(first, axis=0, dtype=jnp.int32)
  before = jnp.zeros((history, *episode.shape[1:]), jnp.int32)
  extended_episode = jnp.concatenate([before, episode])

  extended = jnp.concatenate([earlier, frames])
  delays = range(history + 1)
  # One selection over the whole stack: on CPU far quicker than one for each
  # delay.
  stacked = jnp.stack([extended[i : i + length] for i in delays], -2)
  same = jnp.stack(
    [extended_episode[i : i + length] == episode for i in delays], -1
  )
  same = same.reshape((*first.shape, *(1,) * (frames.ndim - 3), -1, 1))
  stacked = jnp.where(same, stacked, jnp.zeros((), frames.dtype))
  stacked = stacked.reshape((*frames.shape[:-1], -1))
  return stacked, stacked[-1, ..., channels:]
