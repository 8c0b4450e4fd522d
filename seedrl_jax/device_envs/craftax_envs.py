"""Environments of Craftax: Craftax and Craftax-Classic, symbols or pixels."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from craftax import craftax_env

from seedrl_jax import types
from seedrl_jax.device_envs import batching

# A reset builds a world. With a share of an eighth, a CPU makes a quarter of
# the steps.
_RESET_SHARE = 1 / 64


def names() -> list[str]:
  """Returns the names of all environments."""
  return [
    f'Craftax-{kind}-v1'
    for kind in ('Symbolic', 'Pixels', 'Classic-Symbolic', 'Classic-Pixels')
  ]


def make(
  name: str, flag: str, options: dict[str, Any], dropped: tuple[str, ...]
) -> types.DeviceEnv:
  """Makes environments; `options` are fields of their parameters.

  The time limit `max_timesteps` truncates.
  """
  # Nothing can be wrong, and observations are arrays.
  del flag, dropped
  env = craftax_env.make_craftax_env_from_name(name, auto_reset=False)
  params = env.default_params.replace(**options)
  endless = params.replace(max_timesteps=np.iinfo(np.int32).max)

  space = env.observation_space(params)
  is_picture = len(space.shape) == 3

  def observe(observation: jax.Array) -> jax.Array:
    # The network takes brightness from 0 to 255.
    return jnp.round(observation * 255) if is_picture else observation

  def reset(key: jax.Array) -> tuple[types.Nest, types.Nest]:
    observation, state = env.reset_env(key, params)
    return state, observe(observation)

  def step(
    key: jax.Array, state: types.Nest, action: jax.Array
  ) -> batching.Transition:
    observation, state, reward, ends, _ = env.step_env(
      key, state, action, params
    )
    terminated = env.is_terminal(state, endless)
    return batching.Transition(
      state, observe(observation), reward, terminated, ends
    )

  dtype = np.dtype(np.uint8 if is_picture else np.float32)
  spec = types.StreamSpec(
    observation=types.ArraySpec(space.shape, dtype),
    action=types.discrete(env.num_actions),
    action_repeat=1,
    name=f'craftax:{name}',
  )
  return batching.batch(spec, reset, step, _RESET_SHARE)
