"""Tests for seedrl_jax/envs/recall.py."""

import numpy as np
import pytest
from gymnasium.utils import env_checker

from seedrl_jax.envs import recall


def _play(env, answer):
  """Plays an episode; returns the cue, its reward and its length."""
  observation, _ = env.reset()
  cue = int(np.argmax(observation))
  np.testing.assert_array_equal(observation, np.eye(5)[cue])
  length = 0
  while True:
    asked = observation[-1] == 1
    if length:
      np.testing.assert_array_equal(observation[:-1], 0)
    action = answer(cue) if asked else 0
    observation, reward, terminated, truncated, _ = env.step(action)
    length += 1
    assert not truncated
    assert terminated == asked
    if terminated:
      return cue, reward, length
    assert reward == 0


def test_episodes():
  env = recall.make(num_cues=4, min_delay=2, max_delay=4)
  env.reset(seed=1)
  right = [_play(env, lambda cue: cue) for _ in range(200)]
  assert {reward for _, reward, _ in right} == {1.0}
  assert {cue for cue, _, _ in right} == set(range(4))
  # Two to four actions, then the answer.
  assert {length for _, _, length in right} == {3, 4, 5}
  wrong = [_play(env, lambda cue: (cue + 1) % 4) for _ in range(20)]
  assert {reward for _, reward, _ in wrong} == {0.0}


def test_is_a_gymnasium_environment():
  env_checker.check_env(recall.make(), skip_render_check=True)


@pytest.mark.parametrize('values', [(1, 1, 1), (2, 0, 1), (2, 3, 2)])
def test_refuses_what_is_no_task(values):
  with pytest.raises(ValueError, match='there must be 2 cues or more'):
    recall.make(*values)
