"""The losses of critics, policy and temperature (arXiv 1812.05905).

They are means over all T x B transitions, of which invalid ones (those that
lead to FIRST) count 0. The update divides them by the share of the others.
"""

import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from seedrl_jax import types
from seedrl_jax.agents import transitions as transitions_lib


class Values(NamedTuple):
  """What the losses need of the networks.

  x_t are the steps that act, x_{t+1} those that follow; a' are new actions of
  the policy, with gradients in `log_prob` and `policy_q`.
  """

  q: jax.Array  # float32 [2, T, B], Q(x_t, a_t) of both critics
  policy_q: jax.Array  # float32 [2, T, B], Q(x_t, a'_t), critics held fixed
  log_prob: jax.Array  # float32 [T, B], log pi(a'_t | x_t)
  next_q: jax.Array  # float32 [2, T, B], targets' Q(x_{t+1}, a'_{t+1})
  next_log_prob: jax.Array  # float32 [T, B], log pi(a'_{t+1} | x_{t+1})


def sac_loss(
  config: types.Config,
  steps: types.Steps,
  values: Values,
  log_temperature: jax.Array,
  target_entropy: float,
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Computes the sum of the losses, and metrics.

  Equations 5 to 7 and 18 of arXiv 1812.05905. The temperature's gradient is
  that of its logarithm, as in the authors' code. A truncated episode
  bootstraps from its last observation.

  Args:
    config: `config.loss`.
    steps: `[T + 1, B]`.
    values: see `Values`.
    log_temperature: float32 scalar.
    target_entropy: in nats.
  """
  length, batch = steps.reward.shape[0] - 1, steps.reward.shape[1]
  chex.assert_shape([values.log_prob, values.next_log_prob], (length, batch))
  chex.assert_shape(
    [values.q, values.policy_q, values.next_q], (2, length, batch)
  )
  transitions = transitions_lib.from_steps(
    steps, discount=config.discount, reward_scale=config.reward_scale
  )
  valid = transitions.valid

  def mean(x: jax.Array) -> jax.Array:
    return jnp.sum(jnp.where(valid, x, 0.0)) / valid.size

  temperature = jnp.float32(config.temperature)
  if config.adapt_temperature:
    temperature = jax.lax.stop_gradient(jnp.exp(log_temperature))
  next_value = jnp.min(values.next_q, 0) - temperature * values.next_log_prob
  target = jax.lax.stop_gradient(
    transitions.reward + transitions.discount * next_value
  )
  error = jnp.where(valid, target - values.q, 0.0)
  critic = 0.5 * mean(jnp.sum(jnp.square(error), axis=0))
  policy = mean(temperature * values.log_prob - jnp.min(values.policy_q, 0))
  loss = critic + policy
  if config.adapt_temperature:
    # Worth 0 as a metric: only its gradient has a meaning.
    excess = jax.lax.stop_gradient(-values.log_prob - target_entropy)
    loss += log_temperature * mean(excess)
  metrics = {'critic': critic, 'policy': policy, 'temperature': temperature}
  return loss, metrics | _diagnostics(values, target, error, valid)


def _diagnostics(
  values: Values, target: jax.Array, error: jax.Array, valid: jax.Array
) -> dict[str, jax.Array]:
  mean = functools.partial(transitions_lib.mean_of_valid, valid=valid)
  return {
    'entropy': mean(-values.log_prob),
    'td_error': mean(jnp.mean(jnp.abs(error), axis=0)),
    'q_mean': mean(jnp.mean(values.q, axis=0)),
    'q_target': mean(target),
    'explained_variance': transitions_lib.explained_variance(
      target, jnp.mean(error, axis=0), valid
    ),
    'health/value_std': jnp.std(jnp.mean(values.q, axis=0)),
    'masked_share': 1.0 - jnp.mean(valid),
  }
