"""Epsilon-greedy exploration, with Ape-X's ladder or DQN's schedule."""

import functools
from typing import NamedTuple, Protocol

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from seedrl_jax import types
from seedrl_jax.agents import base
from seedrl_jax.networks import health

_GOLDEN_RATIO = (5**0.5 - 1) / 2


class ActingParams(NamedTuple):
  """What acting needs of a Q agent's state."""

  network: base.Params
  epsilon: types.Nest  # float32, of training environments; () if no schedule


class ChooseFn(Protocol):
  """Chooses actions by a network's values `[B, A]`, given the epsilon."""

  def __call__(
    self,
    epsilon: types.Nest,
    key: jax.Array,
    q_values: jax.Array,
    env_id: jax.Array,
  ) -> base.AgentOutput: ...


def make_act(module: nn.Module, choose: ChooseFn) -> base.ActFn:
  """Returns an `ActFn` of `ActingParams`; see `base.make_act`."""

  def act(
    params: ActingParams,
    key: jax.Array,
    step: types.AgentInput,
    core: base.Core,
    env_id: jax.Array,
  ) -> tuple[base.AgentOutput, base.Core]:
    own = functools.partial(choose, params.epsilon)
    return base.make_act(module, own)(params.network, key, step, core, env_id)

  return act


def make_measure(module: nn.Module) -> health.MeasureFn:
  """Returns `Agent.measure` for `ActingParams`."""
  return lambda params, inputs, core: health.measure(
    module, params.network, inputs, core
  )


def ladder(
  base: float, alpha: float, num_envs: int, env_id: jax.Array
) -> jax.Array:
  """Returns a fixed epsilon for each training environment, float32 `[B]`.

  Environment i of N has base^(1 + alpha i / (N - 1)), with i a permutation of
  the global ids `env_id`, int32 `[B]` (Ape-X, Horgan et al. 2018, arXiv
  1803.00933, section 4).
  """
  share = _places(num_envs) / max(num_envs - 1, 1)
  power = jnp.float32(1.0 + alpha * share)
  epsilon = jnp.power(jnp.float32(base), power)
  return epsilon[jnp.minimum(env_id, num_envs - 1)]


def _places(num_envs: int) -> np.ndarray:
  """Returns a permutation, int `[N]`, that spreads consecutive ids evenly.

  Actors with fewer environments than allowed get consecutive ids.
  """
  return np.argsort(np.argsort(np.arange(num_envs) * _GOLDEN_RATIO % 1.0))


def linear(
  progress: jax.Array, initial: float, final: float, share: float
) -> jax.Array:
  """Returns DQN's epsilon (Mnih et al. 2015), a float32 scalar.

  It goes from `initial` to `final` in the first `share` of a run and then
  stays; `progress` of the run is float32 in [0, 1], `share` above 0.
  """
  done = jnp.minimum(progress / jnp.float32(share), 1.0)
  return (1.0 - done) * initial + done * final


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
