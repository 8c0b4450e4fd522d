"""An environment of one's own in JAX: move along a line to a goal."""

import jax
import jax.numpy as jnp
import numpy as np

from seedrl_jax import types
from seedrl_jax.device_envs import batching


def make(length: int = 30) -> types.DeviceEnv:
  """Returns the environment; --config.env.factory=my_device_env:make."""

  def reset(key: jax.Array) -> tuple[types.Nest, jax.Array]:
    place = jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0)
    return (place, 0), place

  def step(
    key: jax.Array, state: types.Nest, action: jax.Array
  ) -> batching.Transition:
    del key  # of what is random in a step
    place, steps = state
    place = place.at[0].add(0.1 * (action - 1)).clip(-1.0, 1.0)
    return batching.Transition(
      state=(place, steps + 1),
      observation=place,
      reward=-jnp.abs(place[0] - place[1]),
      terminated=False,
      truncated=steps + 1 == length,
    )

  spec = types.StreamSpec(
    observation=types.ArraySpec((2,), np.dtype(np.float32)),
    action=types.discrete(3),
    action_repeat=1,
    name='Line',
  )
  return batching.batch(spec, reset, step)
