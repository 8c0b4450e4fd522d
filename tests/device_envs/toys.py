"""An environment in JAX whose outputs say what happened to it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from seedrl_jax import types
from seedrl_jax.device_envs import batching

# Ends the episode, as does the time limit.
END = 2
LIMIT = 5


def make(
  reset_share: float = 0.125,
  is_continuous: bool = False,
  is_vector: bool = False,
) -> types.DeviceEnv:
  """Observes the episode's random number and its steps so far.

  The reward is the action; a continuous action never ends an episode.
  """

  def observe(state: Any) -> Any:
    if is_vector:
      return jnp.stack(state)
    return {'number': state[0], 'steps': state[1][None]}

  def reset(key: jax.Array) -> tuple[Any, Any]:
    state = (jax.random.uniform(key), jnp.float32(0))
    return state, observe(state)

  def step(key: jax.Array, state: Any, action: jax.Array) -> Any:
    del key
    state = (state[0], state[1] + 1)
    reward = action[0] if is_continuous else action
    ends = jnp.array(False) if is_continuous else action == END
    return batching.Transition(
      state, observe(state), reward, ends, state[1] >= LIMIT
    )

  action = types.discrete(END + 1)
  if is_continuous:
    bounds = (-0.5,), (0.5,)
    action = types.ActionSpec((1,), np.dtype(np.float32), *bounds)
  shapes = (2,) if is_vector else {'number': (), 'steps': (1,)}
  spec = types.StreamSpec(
    observation=jax.tree.map(
      lambda shape: types.ArraySpec(shape, np.dtype(np.float32)),
      shapes,
      is_leaf=lambda x: isinstance(x, tuple),
    ),
    action=action,
    action_repeat=3,
    name='Toy',
  )
  return batching.batch(spec, reset, step, reset_share)
