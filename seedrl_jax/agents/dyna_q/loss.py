"""The model's loss, and what it imagines."""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
import optax

from seedrl_jax import types
from seedrl_jax.agents import transitions as transitions_lib
from seedrl_jax.agents.dyna_q import model as model_lib
from seedrl_jax.agents.r2d2 import agent as r2d2

# Maps a key and states `[N, F + P]` to actions, int32 `[N]`.
PolicyFn = Callable[[jax.Array, jax.Array], jax.Array]


def model_loss(
  config: types.Config,
  predict: model_lib.PredictFn,
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


def rollout_error(
  predict: model_lib.PredictFn, steps: types.Steps
) -> jax.Array:
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
  predict: model_lib.PredictFn,
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
