"""Frame stacking in the agent's own state, on the device.

Environments send each frame once; `network.Network` puts the last k together
here, for one step and for an unroll alike. Frames from before the episode's
start are zero (EnvPool's `stack_num` repeats the first frame there instead;
from the episode's k-th frame on the two are equal).
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp


class FrameHistory(NamedTuple):
  """The frames of an unroll and those before it, each once.

  Attributes:
    frames: `[T + k - 1, B, ..., C]`, oldest first.
    same: bool `[T, B, k]`, whether `frames[t + i]` is of step t's episode.
  """

  frames: jax.Array
  same: jax.Array


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


def frame_history(
  frames: jax.Array, first: jax.Array, kept: jax.Array
) -> tuple[FrameHistory, jax.Array]:
  """Puts the frames of an unroll behind those that the state holds.

  Args:
    frames: `[T, B, ..., C]`.
    first: bool `[T, B]`, whether an episode starts at the step.
    kept: `[B, ..., C * (k - 1)]`, the state from before the first step.

  Returns:
    the history and the state after the last step, zero if a frame is of an
    earlier episode.
  """
  chex.assert_equal_shape_prefix([frames, first], 2)
  chex.assert_type(kept, frames.dtype)
  length, channels = frames.shape[0], frames.shape[-1]
  history = kept.shape[-1] // channels
  earlier = jnp.stack(jnp.split(kept, history, axis=-1))
  extended = jnp.concatenate([earlier, frames])
  if length > 1:
    # Has the frames laid out once, as bytes; XLA would do it again for each
    # delay, number by number. A single step needs no copy of them at all.
    extended = jax.lax.optimization_barrier(extended)
  # A frame belongs to the step's episode where as many episodes had started
  # by then; frames of `kept` count as the one that goes on until a FIRST.
  episode = jnp.cumsum(first, axis=0, dtype=jnp.int32)
  before = jnp.zeros((history, *episode.shape[1:]), jnp.int32)
  extended_episode = jnp.concatenate([before, episode])
  same = jnp.stack(
    [extended_episode[i : i + length] == episode for i in range(history + 1)],
    axis=-1,
  )
  # Where T is 1 this is the unroll's stack, less its oldest frame.
  last = stack_history(FrameHistory(extended[length - 1 :], same[-1:]))[0]
  return FrameHistory(extended, same), last[..., channels:]


def stack_history(history: FrameHistory) -> jax.Array:
  """Stacks each frame on those before it in the same episode.

  Returns:
    `[T, B, ..., C * k]`, oldest frame first and zero if the frame is of an
    earlier episode.
  """
  frames, same = history
  length, num_frames = same.shape[0], same.shape[-1]
  # One selection over the whole stack: on CPU far quicker than one for each
  # delay.
  stacked = jnp.stack([frames[i : i + length] for i in range(num_frames)], -2)
  same = same.reshape((*same.shape[:2], *(1,) * (frames.ndim - 3), -1, 1))
  stacked = jnp.where(same, stacked, jnp.zeros((), frames.dtype))
  return stacked.reshape((*stacked.shape[:-2], -1))
