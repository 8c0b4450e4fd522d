"""Environments of gymnax, with MinAtar and bsuite."""

from typing import Any

import gymnax
import jax
from gymnax.environments import spaces

from seedrl_jax import types
from seedrl_jax.device_envs import batching
from seedrl_jax.envs import specs


def names() -> list[str]:
  """Returns the names of all environments."""
  return list(gymnax.registered_envs)


def make(
  name: str, flag: str, options: dict[str, Any], dropped: tuple[str, ...]
) -> types.DeviceEnv:
  """Makes environments; `options` are fields of their parameters.

  Raises ValueError, with `flag`, if agents cannot use a space.
  """
  del dropped  # Observations are arrays.
  env, params = gymnax.make(name)
  params = params.replace(**options)

  def reset(key: jax.Array) -> tuple[types.Nest, types.Nest]:
    observation, state = env.reset_env(key, params)
    return state, observation

  def step(
    key: jax.Array, state: types.Nest, action: jax.Array
  ) -> batching.Transition:
    # `env.step` would reset every environment in every step.
    observation, state, reward, terminated, _ = env.step_env(
      key, state, action, params
    )
    truncated = env.is_truncated(state, params)
    return batching.Transition(
      state, observation, reward, terminated, truncated
    )

  observation, action = (
    spaces.gymnax_space_to_gym_space(space)
    for space in (env.observation_space(params), env.action_space(params))
  )
  spec = types.StreamSpec(
    observation=specs.space_spec(observation, flag),
    action=specs.action_spec(action, flag),
    action_repeat=1,
    name=f'gymnax:{name}',
  )
  # Episodes of bsuite and the bandits last for 1 to 100 steps.
  has_long_episodes = not name.endswith(('-bsuite', '-misc'))
  return batching.batch(spec, reset, step, 0.125 if has_long_episodes else 1.0)
