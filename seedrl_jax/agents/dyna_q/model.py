"""The world model: its predictions, its loss, and transitions it imagines.

It takes states, `[..., F + P]`: an observation's vector with its action mask
behind. Here the observations of steps are states, too.
"""

from collections.abc import Callable
from typing import NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_collections

from seedrl_jax import types
from seedrl_jax.networks import action_masks, torsos


class Prediction(NamedTuple):
  """What N actions lead to."""

  observation: jax.Array  # float32 [N, F]
  mask: jax.Array  # float32 [N, P], logits of each value's being legal
  reward: jax.Array  # float32 [N]
  termination: jax.Array  # float32 [N], logit of its probability

  def state(self) -> jax.Array:
    """Returns the next states `[N, F + P]`; legal is what is likely to be."""
    return jnp.concatenate([self.observation, self.mask >= 0.0], axis=-1)


# Maps states `[N, F + P]` and actions `[N]` to what they lead to.
PredictFn = Callable[[jax.Array, jax.Array], Prediction]


class Model(nn.Module):
  """An MLP on state and action, with a head for each prediction."""

  config: ml_collections.FrozenConfigDict  # config.model
  num_actions: int
  mask_size: int = 0  # P

  @nn.compact
  def __call__(self, state: jax.Array, action: jax.Array) -> Prediction:
    """Maps float `[N, F + P]` and int32 `[N]` to a `Prediction`."""
    chex.assert_rank([state, action], [2, 1])
    config = self.config
    features = nn.Dense(config.observation_size, name='observation')(state)
    # Without ReLU: a single unit could be 0 for all actions.
    code = nn.Dense(config.action_size, name='action')(
      jax.nn.one_hot(action, self.num_actions)
    )
    x = jnp.concatenate([nn.relu(features), code], axis=-1)
    x = torsos.MLP(config.hidden_sizes, name='hidden')(x)

    def head(name: str, size: int) -> jax.Array:
      # The first rollouts should stay near their start.
      init = nn.initializers.orthogonal(0.01)
      return nn.Dense(size, kernel_init=init, name=name)(x)

    size = state.shape[-1] - self.mask_size
    return Prediction(
      # Most numbers of an observation change little.
      observation=state[:, :size] + head('change', size),
      mask=head('mask', self.mask_size) if self.mask_size else state[:, size:],
      reward=head('reward', 1)[:, 0],
      termination=head('termination', 1)[:, 0],
    )


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
  size, spec = mask_size(env_spec), env_spec.observation[key]
  mask = state[..., -size:].reshape((*state.shape[:-1], *spec.shape))
  return {name: state[..., :-size], key: mask.astype(spec.dtype)}


def legal(env_spec: types.EnvSpec, state: jax.Array) -> jax.Array:
  """Returns which actions are legal in states, bool `[..., A]`."""
  sizes, num_masked = env_spec.action.sizes, mask_size(env_spec)
  if not num_masked:
    return jnp.ones((*state.shape[:-1], *sizes), bool)
  return action_masks.legal_values(state[..., -num_masked:], sizes)
