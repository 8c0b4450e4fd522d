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
import optax

from seedrl_jax import types
from seedrl_jax.agents import transitions as transitions_lib
from seedrl_jax.agents.r2d2 import agent as r2d2
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


# Maps a key and states `[N, F + P]` to actions, int32 `[N]`.
PolicyFn = Callable[[jax.Array, jax.Array], jax.Array]


def model_loss(
  config: types.Config,
  predict: PredictFn,
  steps: types.Steps,
  weight: jax.Array,
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Computes the model's loss on the first transition of each sequence.

  The sum of the observation's mean squared error, the reward's squared error
  and the cross-entropies of the termination and of the action mask, a mean over
  actions. A truncated episode does not terminate. A mask at termination means
  nothing. Linear in equal pieces of the batch.

  Args:
    config: `config.model`.
    steps: `[T + 1, B]`.
    weight: float32 `[B]`.

  Returns:
    the weighted mean over B, invalid transitions counting 0; and each part's
    mean over valid ones.
  """
  chex.assert_rank([steps.observation, steps.reward, weight], [3, 2, 1])
  first = jax.tree.map(lambda x: x[:2], steps)
  transitions = transitions_lib.from_steps(first, discount=1.0)
  valid, reward, discount = (x[0] for x in transitions)
  predicted = predict(first.observation[0], first.agent_output.action[0])
  parts = {
    'observation': _distance(predicted.observation, first.observation[1]),
    'reward': jnp.square(config.reward_scale * (predicted.reward - reward)),
    'termination': optax.sigmoid_binary_cross_entropy(
      predicted.termination, 1.0 - discount
    ),
  }
  if size := predicted.mask.shape[-1]:
    errors = optax.sigmoid_binary_cross_entropy(
      predicted.mask, first.observation[1][:, -size:]
    )
    parts['mask'] = discount * jnp.mean(errors, axis=-1)
  total = sum(jnp.where(valid, x, 0.0) for x in parts.values())
  metrics = {
    f'model_{name}': transitions_lib.mean_of_valid(x, valid)
    for name, x in parts.items()
  }
  return jnp.mean(weight * total), metrics


def _distance(x: jax.Array, state: jax.Array) -> jax.Array:
  """Returns the mean squared errors `[N]` of `[N, F]` from `[N, F + P]`."""
  return jnp.mean(jnp.square(x - state[:, : x.shape[-1]]), axis=-1)


def rollout_error(predict: PredictFn, steps: types.Steps) -> jax.Array:
  """Returns the model's error after T steps along the real actions.

  That is the mean squared error of the last observation, over the sequences
  `[T + 1, B]` that stay in one episode.
  """

  def step(state: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array]:
    predicted = predict(state, action)
    return predicted.state(), predicted.observation

  _, predicted = jax.lax.scan(
    step, steps.observation[0], steps.agent_output.action[:-1]
  )
  valid = transitions_lib.from_steps(steps, discount=1.0).valid.all(axis=0)
  error = _distance(predicted[-1], steps.observation[-1])
  return transitions_lib.mean_of_valid(error, valid)


def draw_starts(
  key: jax.Array, priorities: jax.Array, valid: jax.Array, count: int
) -> jax.Array:
  """Draws transitions to start rollouts from, int32 `[count]`.

  Probabilities are proportional to `priorities`, float32 `[B]`, not negative.
  Draws no invalid transition unless all are.
  """
  # All alike if all priorities are 0.
  mass = jnp.where(valid, priorities + 1e-9, 0.0)
  share = mass / jnp.maximum(jnp.sum(mass), 1e-9)
  return jax.random.choice(key, valid.size, (count,), p=share)


def imagine(
  predict: PredictFn,
  policy: PolicyFn,
  state: jax.Array,
  valid: jax.Array,
  key: jax.Array,
  length: int,
) -> types.Steps:
  """Rolls the model out; returns the transitions, as unrolls of two steps.

  A rollout ends where the predicted probability of termination is at least 1/2.
  What would come after that leads to FIRST: it is no transition.

  Args:
    state: float32 `[S, F + P]`, to start from.
    valid: bool `[S]`; False for no rollout.
    length: k, at least 1.

  Returns:
    steps `[2, k S]`; transitions that start rollouts come first.
  """

  def step(
    carry: tuple[jax.Array, jax.Array], key: jax.Array
  ) -> tuple[tuple[jax.Array, jax.Array], tuple[types.Steps, types.Steps]]:
    before, alive = carry
    action = policy(key, before)
    predicted = predict(before, action)
    reward = predicted.reward
    # What nobody looks at must stay finite.
    after = jnp.where(alive[:, None], predicted.state(), before)
    ends = predicted.termination >= 0.0
    kind = jnp.where(ends, types.StepType.LAST, types.StepType.MID)
    acts = types.Steps(
      observation=before,
      reward=jnp.zeros_like(reward),
      discount=jnp.ones_like(reward),
      step_type=jnp.full_like(kind, types.StepType.MID),
      previous_action=jnp.zeros_like(action),
      # Neither the values that acted nor the second step's action are read.
      agent_output=r2d2.AgentOutput(action, jnp.zeros_like(reward)),
      parameter_version=jnp.full_like(action, types.NO_VERSION),
    )
    follows = acts._replace(
      observation=after,
      reward=reward,
      discount=1.0 - ends,
      step_type=jnp.where(alive, kind, types.StepType.FIRST),
      previous_action=action,
    )
    return (after, alive & ~ends), (acts, follows)

  keys = jax.random.split(key, length)
  _, pairs = jax.lax.scan(step, (state, valid), keys)
  return jax.tree.map(
    lambda *x: jnp.stack([y.reshape((-1, *y.shape[2:])) for y in x]), *pairs
  )
