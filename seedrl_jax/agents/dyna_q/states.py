"""The model's states: an observation's vector with its action mask behind."""

import jax
import jax.numpy as jnp

from seedrl_jax import types
from seedrl_jax.networks import action_masks


def mask_size(env_spec: types.EnvSpec) -> int:
  """Returns P, the numbers of an action mask; 0 if there is none."""
  return env_spec.action.num_values if env_spec.stream.action_mask else 0


def vector_specs(env_spec: types.EnvSpec) -> dict[str, types.Nest]:
  """Returns the specs, by key, of all but the mask; '' if it is no dict."""
  observation, key = env_spec.observation, env_spec.stream.action_mask
  if not key:
    return {'': observation}
  return {k: x for k, x in observation.items() if k != key}


def from_observation(
  env_spec: types.EnvSpec, observation: types.Nest
) -> jax.Array:
  """Returns states, float `[..., F + P]`, of observations `[..., F]`."""
  key = env_spec.stream.action_mask
  if not key:
    return observation
  mask_spec = env_spec.observation[key]
  leading = observation[key].ndim - len(mask_spec.shape)
  rest, mask = action_masks.split(observation, key, leading)
  (vector,) = rest.values()
  return jnp.concatenate([vector, mask.astype(vector.dtype)], axis=-1)


def to_observation(env_spec: types.EnvSpec, state: jax.Array) -> types.Nest:
  """Undoes `from_observation`."""
  key = env_spec.stream.action_mask
  if not key:
    return state
  ((name, _),) = vector_specs(env_spec).items()
  vector, mask = split(env_spec, state)
  spec = env_spec.observation[key]
  mask = mask.reshape((*state.shape[:-1], *spec.shape)).astype(spec.dtype)
  return {name: vector, key: mask}


def split(
  env_spec: types.EnvSpec, state: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Returns the vector `[..., F]` and the mask `[..., P]` of states."""
  size = state.shape[-1] - mask_size(env_spec)
  return state[..., :size], state[..., size:]


def legal(env_spec: types.EnvSpec, state: jax.Array) -> jax.Array:
  """Returns which actions are legal in states, bool `[..., A]`."""
  sizes = env_spec.action.sizes
  if not mask_size(env_spec):
    return jnp.ones((*state.shape[:-1], *sizes), bool)
  return action_masks.legal_values(split(env_spec, state)[1], sizes)
