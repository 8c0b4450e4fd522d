"""Epsilon-greedy exploration, with Ape-X's ladder or DQN's schedule."""

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from seedrl_jax import types
from seedrl_jax.agents import base, transitions
from seedrl_jax.networks import action_masks

_GOLDEN_RATIO = (5**0.5 - 1) / 2


class ActingParams(NamedTuple):
  """What acting needs of a Q agent's state."""

  network: base.Params
  epsilon: types.Nest  # float32, of training environments; () for the ladder


network_params = operator.attrgetter('network')


def make_act(
  module: nn.Module,
  config: types.Config,
  env_spec: types.EnvSpec,
  make_output: Callable[[jax.Array, jax.Array], base.AgentOutput],
) -> base.ActFn:
  """Returns an epsilon-greedy `ActFn`, given `config.exploration`.

  `make_output` maps actions `[B]` and values `[B, A]` to the agent's output.
  """

  def choose(
    params: ActingParams, key: jax.Array, q_values: jax.Array, env_id: jax.Array
  ) -> base.AgentOutput:
    epsilon: Any = params.epsilon
    if isinstance(epsilon, tuple):
      epsilon = ladder(
        config.epsilon_base, config.epsilon_alpha, env_spec.num_envs, env_id
      )
    epsilon = base.with_evaluation(
      epsilon, config.eval_epsilon, env_spec, env_id
    )
    return make_output(epsilon_greedy(key, q_values, epsilon), q_values)

  return base.make_act(module, choose, network_params)


def ladder(
  base: float, alpha: float, num_envs: int, env_id: jax.Array
) -> jax.Array:
  """Returns a fixed epsilon for each training environment, float32 `[B]`.

  Environment i of N has base^(1 + alpha i / (N - 1)), with i a permutation of
  the global ids `env_id`, int32 `[B]` (Ape-X, Horgan et al. 2018, arXiv
  1803.00933, section 4).
  """
  # Spreads consecutive ids evenly: actors with fewer environments than allowed
  # get such ids.
  order = np.argsort(np.argsort(np.arange(num_envs) * _GOLDEN_RATIO % 1.0))
  share = order / max(num_envs - 1, 1)
  power = jnp.float32(1.0 + alpha * share)
  epsilon = jnp.power(jnp.float32(base), power)
  return epsilon[jnp.minimum(env_id, num_envs - 1)]


def linear(
  progress: jax.Array, config: types.Config, share: float
) -> jax.Array:
  """Returns DQN's epsilon (Mnih et al. 2015), a float32 scalar.

  It goes from `config.initial_epsilon` to `config.final_epsilon` in the first
  `share`, above 0, of a run and then stays; `progress` of the run is float32 in
  [0, 1].
  """
  fraction = jnp.minimum(progress / jnp.float32(share), 1.0)
  initial, final = config.initial_epsilon, config.final_epsilon
  return (1.0 - fraction) * initial + fraction * final


def epsilon_greedy(
  key: jax.Array, q_values: jax.Array, epsilon: jax.Array
) -> jax.Array:
  """Returns epsilon-greedy actions, int32 `[B]`.

  `q_values` is float32 `[B, A]`, `action_masks.ILLEGAL` of illegal actions;
  `epsilon`, `[B]`, is the probability of a uniformly random legal action.
  """
  explore_key, action_key = jax.random.split(key)
  explores = jax.random.uniform(explore_key, epsilon.shape) < epsilon
  random_action = uniform(action_key, q_values != action_masks.ILLEGAL)
  best = jnp.argmax(q_values, axis=-1).astype(jnp.int32)
  return jnp.where(explores, random_action, best)


def uniform(key: jax.Array, legal: jax.Array) -> jax.Array:
  """Returns random actions, int32 `[B]`, of the legal ones, bool `[B, A]`."""
  number = jax.random.randint(key, legal.shape[:1], 0, legal.sum(axis=-1))
  is_later = jnp.cumsum(legal, axis=-1) > number[:, None]
  return jnp.argmax(is_later, axis=-1).astype(jnp.int32)


def q_metrics(
  q_values: jax.Array, target: jax.Array, error: jax.Array, valid: jax.Array
) -> dict[str, jax.Array]:
  """Returns means over valid transitions.

  Args:
    q_values: `[T, B, A]`, of the steps that act.
    target, error: `[T, B]`, of the taken actions; `error` is target - value.
    valid: bool `[T, B]`.
  """
  mean = functools.partial(transitions.mean_of_valid, valid=valid)
  return {
    'td_error': mean(jnp.abs(error)),
    # Of the actions taken, and of the best.
    'q_mean': mean(target - error),
    'q_max': mean(jnp.max(q_values, axis=-1)),
    'q_target': mean(target),
    'explained_variance': transitions.explained_variance(target, error, valid),
    'masked_share': 1.0 - jnp.mean(valid),
  }
