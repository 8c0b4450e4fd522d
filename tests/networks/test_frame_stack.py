"""Tests frame stacks against a step-by-step reference and EnvPool."""

import chex
import envpool
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax.networks import frame_stack


@jax.jit
def _stack(frames, first, kept):
  history, kept = frame_stack.frame_history(frames, first, kept)
  return frame_stack.stack_history(history), kept


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
  kept = frame_stack.initial_frames(5, (3, 2, channels), np.uint8, num_frames)
  stacks = []
  for x, f in zip(np.split(frames, cuts), np.split(first, cuts), strict=True):
    stacked, kept = _stack(x, f, kept)
    stacks.append(stacked)
  assert kept.dtype == jnp.uint8
  np.testing.assert_array_equal(np.concatenate(stacks), expected)
  np.testing.assert_array_equal(kept, expected[-1, ..., channels:])


def test_history_has_each_frame_once_and_says_whose_it_is():
  frames = np.arange(1, 7, dtype=np.uint8).reshape((3, 2, 1))
  kept = np.array([[10, 20], [30, 40]], np.uint8)
  first = np.array([[False, True], [False, False], [True, False]])
  history, state = jax.jit(frame_stack.frame_history)(frames, first, kept)
  np.testing.assert_array_equal(
    history.frames[..., 0], [[10, 30], [20, 40], [1, 2], [3, 4], [5, 6]]
  )
  whole, new = [True] * 3, [False, False, True]
  np.testing.assert_array_equal(
    history.same,
    [[whole, new], [whole, [False, True, True]], [new, whole]],
  )
  np.testing.assert_array_equal(state, [[0, 5], [4, 6]])


def test_dtype_must_be_that_of_the_state():
  kept = frame_stack.initial_frames(1, (2,), np.uint8, 4)
  with pytest.raises(AssertionError):
    frame_stack.frame_history(
      jnp.zeros((1, 1, 2)), jnp.ones((1, 1), bool), kept
    )


def _pong(stack_num):
  # Episodes of 9 steps: several resets in few steps.
  return envpool.make_gymnasium(
    'Pong-v5', num_envs=2, seed=7, max_episode_steps=9, stack_num=stack_num
  )


def test_equals_envpool_from_the_fourth_frame_on():
  single, stacked = _pong(1), _pong(4)
  frame, _ = single.reset()
  expected, _ = stacked.reset()
  elapsed = np.zeros(2, int)
  rng = np.random.default_rng(1)
  kept = frame_stack.initial_frames(2, (84, 84, 1), np.uint8, 4)
  compared = resets = 0
  for _ in range(32):
    first = elapsed == 0
    frames = np.moveaxis(frame, 1, -1)[None]
    ours, kept = _stack(frames, first[None], kept)
    ours = np.moveaxis(np.asarray(ours)[0], -1, 1)
    for b in range(2):
      if elapsed[b] >= 3:
        np.testing.assert_array_equal(ours[b], expected[b])
        compared += 1
      else:
        # Earlier, ours is zero and EnvPool repeats the first frame.
        np.testing.assert_array_equal(ours[b, : 3 - elapsed[b]], 0)
        new = slice(3 - elapsed[b], None)
        np.testing.assert_array_equal(ours[b, new], expected[b, new])
    resets += int(first.sum())
    action = rng.integers(0, 6, 2)
    frame, *_, info = single.step(action)
    expected, *_, other_info = stacked.step(action)
    chex.assert_trees_all_equal(
      info['elapsed_step'], other_info['elapsed_step']
    )
    elapsed = info['elapsed_step']
  assert compared >= 28
  assert resets >= 6
