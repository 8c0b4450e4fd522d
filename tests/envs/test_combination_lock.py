"""Tests for seedrl_jax/envs/combination_lock.py."""

import numpy as np
import pytest
from gymnasium.utils import env_checker

from seedrl_jax import types
from seedrl_jax.envs import combination_lock


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
  return types.EnvSpec(
    'lock', observation, types.discrete(num_actions), 1, 1, 0
  )


def test_opener_opens():
  env = combination_lock.make(length=7, num_actions=3)
  assert _open(env, combination_lock.opener(_spec(7, 3), 0)) == (1.0, 7)


@pytest.mark.parametrize('position', range(7))
def test_the_first_wrong_action_ends_it(position):
  env = combination_lock.make(length=7, num_actions=3)
  opener = combination_lock.opener(_spec(7, 3), 0)

  def policy(step):
    wrong = int(step.observation[0, position] == 1)
    return (opener(step) + wrong) % 3

  assert _open(env, policy) == (0.0, position + 1)


def test_is_a_gymnasium_environment():
  env = combination_lock.make()
  env_checker.check_env(env, skip_render_check=True)


@pytest.mark.parametrize('values', [(0, 2), (3, 1)])
def test_refuses_what_is_no_lock(values):
  with pytest.raises(ValueError, match='length must be at least 1'):
    combination_lock.make(*values)
