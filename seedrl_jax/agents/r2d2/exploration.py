"""Epsilon-greedy exploration with a fixed epsilon for each environment."""

import chex
import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from seedrl_jax import types

_GOLDEN_RATIO = (5**0.5 - 1) / 2


def epsilons(
  config: ml_collections.ConfigDict, env_spec: types.EnvSpec, env_id: jax.Array
) -> jax.Array:
  """Returns the epsilon of each global `env_id`, float32 `[B]`.

  Training environment i of N has base^(1 + alpha i / (N - 1)), with i a
  permutation of the ids (Ape-X, Horgan et al. 2018, arXiv 1803.00933, section
  4); evaluation environments have `eval_epsilon`.
  """
  num_envs = env_spec.num_envs
  share = _places(num_envs) / max(num_envs - 1, 1)
  power = jnp.float32(1.0 + config.epsilon_alpha * share)
  epsilon = jnp.power(jnp.float32(config.epsilon_base), power)
  training = epsilon[jnp.minimum(env_id, num_envs - 1)]
  return jnp.where(env_id >= num_envs, config.eval_epsilon, training)


def _places(num_envs: int) -> np.ndarray:
  """Returns a permutation, int `[N]`, that spreads consecutive ids evenly.

  Actors with fewer environments than allowed get consecutive ids.
  """
  return np.argsort(np.argsort(np.arange(num_envs) * _GOLDEN_RATIO % 1.0))


def epsilon_greedy(
  key: jax.Array, q_values: jax.Array, epsilon: jax.Array
) -> jax.Array:
  """Returns epsilon-greedy actions, int32 `[B]`.

  `q_values` is float32 `[B, A]`; `epsilon`, `[B]`, is the probability of a
  uniformly random action.
  """
  batch, num_actions = q_values.shape
  chex.assert_shape(epsilon, (batch,))
  explore_key, action_key = jax.random.split(key)
  explores = jax.random.uniform(explore_key, (batch,)) < epsilon
  anything = jax.random.randint(action_key, (batch,), 0, num_actions)
  best = jnp.argmax(q_values, axis=-1)
  return jnp.where(explores, anything, best).astype(jnp.int32)
