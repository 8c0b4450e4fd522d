"""The R2D2 loss of a batch of sequences, and the sequences' priorities."""

import chex
import jax
import jax.numpy as jnp
import ml_collections
import rlax

from seedrl_jax import types
from seedrl_jax.agents import sgd
from seedrl_jax.agents import transitions as transitions_lib
from seedrl_jax.agents.r2d2 import targets


def q_loss(
  config: ml_collections.ConfigDict,
  q_values: jax.Array,
  target_q_values: jax.Array,
  steps: types.Steps,
  weight: jax.Array,
  unroll_length: int,
) -> tuple[jax.Array, sgd.LossOutput]:
  """Computes the TD loss of trained transitions: half the square, or Huber's.

  Linear in equal pieces of the batch. `weight` is `[B]`; other arguments are as
  in `targets.td_errors`.

  Returns:
    the weighted mean over sequences of the sum over valid transitions (divided
    by U if the reduction is 'mean'); metrics and new priorities.
  """
  chex.assert_shape(weight, (q_values.shape[1],))
  chex.assert_type(weight, jnp.float32)
  errors = targets.td_errors(
    config, q_values, target_q_values, steps, unroll_length
  )
  # Invalid transitions have error 0 and no gradient.
  if config.huber_delta:
    losses = rlax.huber_loss(errors.error, config.huber_delta)
  else:
    losses = rlax.l2_loss(errors.error)
  per_sequence = jnp.sum(losses, axis=0)
  if config.reduction == 'mean':
    # Divides by all transitions, so that each valid one counts the same.
    per_sequence /= unroll_length
  loss = jnp.mean(weight * per_sequence)
  priorities = mixed_priorities(errors, config.priority_eta)
  metrics = _metrics(errors, q_values[:unroll_length])
  metrics |= {
    'replay/priority_mean': jnp.mean(priorities),
    'replay/importance_weight_mean': jnp.mean(weight),
  }
  return loss, sgd.LossOutput(metrics, priorities)


def _metrics(
  errors: targets.TDErrors, q_values: jax.Array
) -> dict[str, jax.Array]:

  def mean(x: jax.Array) -> jax.Array:
    return transitions_lib.mean_of_valid(x, errors.valid)

  return {
    'td_error': mean(jnp.abs(errors.error)),
    # Of the actions taken, and of the best; rescaled.
    'q_mean': mean(errors.target - errors.error),
    'q_max': mean(jnp.max(q_values, axis=-1)),
    'q_target': mean(errors.target),
    'masked_share': 1.0 - jnp.mean(errors.valid),
  }


def mixed_priorities(errors: targets.TDErrors, eta: float) -> jax.Array:
  """Returns eta max |TD| + (1 - eta) mean |TD|, float32 `[B]`.

  R2D2 (Kapturowski et al. 2019), section 2.3, over valid transitions. It is 0
  without any: a table draws such a sequence only if all priorities are 0.
  """
  chex.assert_rank(errors.error, 2)
  size = jnp.abs(errors.error)
  count = jnp.maximum(jnp.sum(errors.valid, axis=0), 1)
  mixed = eta * jnp.max(size, axis=0) + (1.0 - eta) * jnp.sum(size, 0) / count
  return jax.lax.stop_gradient(mixed)


def initial_priorities(
  config: ml_collections.ConfigDict,
  burn_in: int,
  unroll_length: int,
  steps: types.Steps,
) -> jax.Array:
  """Returns the priorities of new sequences, float32 `[W]`.

  Recorded values stand for both networks, so no network runs (Ape-X, Horgan et
  al. 2018, section 3). `steps` is `[T + 1, W]`, with an `agent_output` of
  `action` and `q_values`; the observation is not read.
  """
  steps = jax.tree.map(lambda x: x[burn_in:], steps)
  q_values = steps.agent_output.q_values
  errors = targets.td_errors(config, q_values, q_values, steps, unroll_length)
  return mixed_priorities(errors, config.priority_eta)
