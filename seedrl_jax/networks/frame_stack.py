"""Frame stacking in the agent's state, on the device.

Environments send each frame once. Frames from before the episode are zero
(EnvPool's `stack_num` repeats the first frame instead).
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp


class FrameHistory(NamedTuple):
  """The frames of an unroll and the k - 1 before it."""

  frames: jax.Array  # [T + k - 1, B, ..., C], oldest first
  same: jax.Array  # bool [T, B, k]: frames[t + i] is of step t's episode


def initial_frames(
  batch: int, shape: tuple[int, ...], dtype: jnp.dtype, num_frames: int
) -> jax.Array:
  """Returns the state before any step, `[B, ..., C * (k - 1)]` zeros.

  `shape` is that of one frame; frames are stacked on its last axis.
  """
  *rest, channels = shape
  return jnp.zeros((batch, *rest, channels * (num_frames - 1)), dtype)


def frame_history(
  frames: jax.Array, first: jax.Array, kept: jax.Array
) -> tuple[FrameHistory, jax.Array]:
  """Appends frames `[T, B, ..., C]` to those in the state.

  Args:
    frames: of an unroll.
    first: bool `[T, B]`, whether an episode starts at the step.
    kept: the state, `[B, ..., C * (k - 1)]`, oldest frame first.

  Returns:
    the history and the next state; its frames of earlier episodes are zero.
  """
  chex.assert_equal_shape_prefix([frames, first], 2)
  chex.assert_type(kept, frames.dtype)
  length, channels = frames.shape[0], frames.shape[-1]
  history = kept.shape[-1] // channels
  earlier = jnp.stack(jnp.split(kept, history, axis=-1))
  extended = jnp.concatenate([earlier, frames])
  if length > 1:
    # Lays the frames out once; XLA would do it for each delay. A single step
    # needs no copy.
    extended = jax.lax.optimization_barrier(extended)
  # A frame is of the step's episode if equally many episodes had started by
  # then; frames of `kept` continue until a FIRST.
  episode = jnp.cumsum(first, axis=0, dtype=jnp.int32)
  before = jnp.zeros((history, *episode.shape[1:]), jnp.int32)
  extended_episode = jnp.concatenate([before, episode])
  same = jnp.stack(
    [extended_episode[i : i + length] == episode for i in range(history + 1)],
    axis=-1,
  )
  # If T is 1, this is the unroll's stack without its oldest frame.
  last = stack_history(FrameHistory(extended[length - 1 :], same[-1:]))[0]
  return FrameHistory(extended, same), last[..., channels:]


def stack_history(history: FrameHistory) -> jax.Array:
  """Returns stacks `[T, B, ..., C * k]`, oldest frame first.

  Frames of earlier episodes are zero.
  """
  frames, same = history
  length, num_frames = same.shape[0], same.shape[-1]
  # One selection over the whole stack: on CPU faster than one per delay.
  stacked = jnp.stack([frames[i : i + length] for i in range(num_frames)], -2)
  same = same.reshape((*same.shape[:2], *(1,) * (frames.ndim - 3), -1, 1))
  stacked = jnp.where(same, stacked, jnp.zeros((), frames.dtype))
  return stacked.reshape((*stacked.shape[:-2], -1))
