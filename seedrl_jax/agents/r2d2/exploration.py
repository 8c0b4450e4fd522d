"""Epsilon-greedy exploration, each environment with an epsilon of its own.

`agent.make_agent` binds it to acting. Epsilon follows from the global id of the
environment, in the graph, so that whoever steps an environment, here or on
another host, need know nothing of it.
"""

from typing import Any

import chex
import jax
import jax.numpy as jnp

from seedrl_jax import types


def epsilons(
  config: Any, env_spec: types.EnvSpec, env_id: jax.Array
) -> jax.Array:
  """Returns each environment's epsilon, float32 `[B]`.

  Training environment i of N has base^(1 + alpha i / (N - 1)), from base down
  to base^(1 + alpha) (Ape-X, Horgan et al. 2018, arXiv 1803.00933, section 4);
  evaluation environments have `eval_epsilon`.

  Args:
    config: `config.exploration`.
    env_spec: the environments; only their numbers matter.
    env_id: int32 `[B]`, global.
  """
  # A single environment has the base.
  place = env_id / max(env_spec.num_envs - 1, 1)
  power = 1.0 + config.epsilon_alpha * place
  epsilon = jnp.power(jnp.float32(config.epsilon_base), power)
  is_evaluation = env_id >= env_spec.num_envs
  return jnp.where(is_evaluation, config.eval_epsilon, epsilon)


def epsilon_greedy(
  key: jax.Array, q_values: jax.Array, epsilon: jax.Array
) -> jax.Array:
  """Returns actions, int32 `[B]`: the best, with chance epsilon any.

  Args:
    key: PRNG key.
    q_values: float32 `[B, A]`.
    epsilon: float32 `[B]`, chance of an action drawn evenly from all A.
  """
  batch, num_actions = q_values.shape
  chex.assert_shape(epsilon, (batch,))
  explore_key, action_key = jax.random.split(key)
  explores = jax.random.uniform(explore_key, (batch,)) < epsilon
  anything = jax.random.randint(action_key, (batch,), 0, num_actions)
  best = jnp.argmax(q_values, axis=-1)
  return jnp.where(explores, anything, best).astype(jnp.int32)
