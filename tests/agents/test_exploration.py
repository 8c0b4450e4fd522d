"""Tests epsilon-greedy choice, Ape-X's ladder and DQN's schedule."""

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import pytest

from seedrl_jax.agents import exploration


def _epsilons(num_envs, ids):
  return np.asarray(
    jax.jit(lambda x: exploration.ladder(0.4, 7.0, num_envs, x))(
      np.array(ids, np.int32)
    )
  )


@pytest.mark.parametrize('num_envs', [2, 256])
def test_environments_have_the_published_epsilons(num_envs):
  epsilons = _epsilons(num_envs, np.arange(num_envs))
  expected = 0.4 ** (1 + 7 * np.arange(num_envs) / (num_envs - 1))
  np.testing.assert_allclose(np.sort(epsilons)[::-1], expected, rtol=1e-5)
  np.testing.assert_allclose(_epsilons(1, [0]), [0.4], rtol=1e-5)


@pytest.mark.parametrize('num_streams', [1, 2, 4])
def test_any_few_consecutive_environments_explore_differently(num_streams):
  """Each stream gives actors its first ids that are free."""
  epsilons = _epsilons(256, np.arange(256)).reshape((num_streams, -1))
  share = 16 // num_streams
  for start in range(256 // num_streams - share):
    few = epsilons[:, start : start + share]
    places = np.sort((np.log(few.ravel()) / np.log(0.4) - 1) / 7)
    # From nearly 0.4 to nearly 0.4^8.
    assert places[0] < 0.15 and places[-1] > 0.85
    assert np.diff(places).max() < 0.25


def test_actions_are_random_as_often_as_asked():
  each = 4000
  epsilon = np.repeat(np.array([0.0, 0.3, 1.0], np.float32), each)
  q_values = np.tile(np.array([0.0, 2.0, 1.0], np.float32), (3 * each, 1))
  action = jax.jit(exploration.epsilon_greedy)(
    jax.random.key(0), q_values, epsilon
  )
  assert action.dtype == jnp.int32
  action = np.asarray(action).reshape(3, each)
  assert (action[0] == 1).all()
  share = [np.bincount(a, minlength=3) / each for a in action]
  # Five standard errors of the share.
  np.testing.assert_allclose(share[1], [0.1, 0.8, 0.1], atol=0.032)
  np.testing.assert_allclose(share[2], [1 / 3] * 3, atol=0.038)


@pytest.mark.parametrize(
  ('progress', 'expected'),
  # Environments overshoot by a few frames.
  [(0.0, 1.0), (0.1, 0.55), (0.2, 0.1), (0.7, 0.1), (1.1, 0.1)],
)
def test_linear_schedule(progress, expected):
  config = ml_collections.ConfigDict({
    'initial_epsilon': 1.0,
    'final_epsilon': 0.1,
  })
  epsilon = exploration.linear(jnp.float32(progress), config, 0.2)
  np.testing.assert_allclose(epsilon, expected, rtol=1e-6)
  assert epsilon.dtype == jnp.float32
