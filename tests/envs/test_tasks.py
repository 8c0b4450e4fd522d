"""Tests of the tasks of this package: recall and the combination lock."""

import numpy as np
import pytest
from gymnasium.utils import env_checker

from seedrl_jax import types
from seedrl_jax.envs import combination_lock, recall


@pytest.mark.parametrize('make', [combination_lock.make, recall.make])
def test_is_a_gymnasium_environment(make):
  env_checker.check_env(make(), skip_render_check=True)


def _answer(env, answer):
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


def test_recall_pays_the_right_answer():
  env = recall.make(num_cues=4, min_delay=2, max_delay=4)
  env.reset(seed=1)
  right = [_answer(env, lambda cue: cue) for _ in range(200)]
  assert {reward for _, reward, _ in right} == {1.0}
  assert {cue for cue, _, _ in right} == set(range(4))
  # Two to four actions, then the answer.
  assert {length for _, _, length in right} == {3, 4, 5}
  wrong = [_answer(env, lambda cue: (cue + 1) % 4) for _ in range(20)]
  assert {reward for _, reward, _ in wrong} == {0.0}


def _open(env, policy):
  """Plays an episode; returns its reward and length."""
  observation, _ = env.reset()
  total, length, done = 0.0, 0, False
  while not done:
    step = types.EnvOutput(observation[None], None, None, None, None)
    action = int(policy(step)[0])
    observation, reward, done, _, _ = env.step(action)
    total += reward
    length += 1
  return total, length


def _spec(length, num_actions):
  observation = types.ArraySpec((length,), np.dtype(np.float32))
  action = types.discrete(num_actions)
  return types.EnvSpec(types.StreamSpec(observation, action, 1, 'lock'), 1, 0)


def test_opener_opens_the_lock():
  env = combination_lock.make(length=7, num_actions=3)
  assert _open(env, combination_lock.opener(_spec(7, 3), 0)) == (1.0, 7)


@pytest.mark.parametrize('position', [0, 6])
def test_the_first_wrong_action_ends_it(position):
  env = combination_lock.make(length=7, num_actions=3)
  opener = combination_lock.opener(_spec(7, 3), 0)

  def policy(step):
    wrong = int(step.observation[0, position] == 1)
    return (opener(step) + wrong) % 3

  assert _open(env, policy) == (0.0, position + 1)
