"""The R2D2 loss of a batch of sequences, from two networks' action values.

It is linear in equal pieces of the batch, as `sgd.LossFn` asks.
"""

import chex
import jax
import jax.numpy as jnp
import ml_collections
import rlax

from seedrl_jax import types
from seedrl_jax.agents import sgd
from seedrl_jax.agents import transitions as transitions_lib
from seedrl_jax.agents.r2d2 import priorities as priorities_lib
from seedrl_jax.agents.r2d2 import targets


def q_loss(
  config: ml_collections.ConfigDict,
  q_values: jax.Array,
  target_q_values: jax.Array,
  steps: types.Steps,
  weight: jax.Array,
  unroll_length: int,
) -> tuple[jax.Array, sgd.LossOutput]:
  """Half the squared TD error, or Huber's loss of it, of trained transitions.

  Args:
    config: `config.loss`.
    q_values: float32 `[T + 1, B, A]`, of the online network.
    target_q_values: the same of the target network.
    steps: `[T + 1, B]`, from the first trained transition on.
    weight: float32 `[B]`, see `types.Batch`.
    unroll_length: U, trained transitions.

  Returns:
    the mean over sequences of weight x the sum over the sequence's valid
    transitions, which the reduction 'mean' divides by U; metrics and the
    sequences' new priorities.
  """
  chex.assert_shape(weight, (q_values.shape[1],))
  chex.assert_type(weight, jnp.float32)
  errors = targets.td_errors(
    config, q_values, target_q_values, steps, unroll_length
  )
  # The error of a transition that is not valid is a constant 0, and so is its
  # gradient.
  if config.huber_delta:
    losses = rlax.huber_loss(errors.error, config.huber_delta)
  else:
    losses = rlax.l2_loss(errors.error)
  per_sequence = jnp.sum(losses, axis=0)
  if config.reduction == 'mean':
    # By all transitions, not by the valid ones, so that each counts the same
    # whatever sequence it stands in.
    per_sequence /= unroll_length
  loss = jnp.mean(weight * per_sequence)
  priorities = priorities_lib.mix(errors, config.priority_eta)
  metrics = _metrics(errors, q_values[:unroll_length])
  metrics |= {
    'replay/priority_mean': jnp.mean(priorities),
    'replay/importance_weight_mean': jnp.mean(weight),
  }
  return loss, sgd.LossOutput(metrics, priorities)


def _metrics(
  errors: targets.TDErrors, q_values: jax.Array
) -> dict[str, jax.Array]:
  """Returns means over valid transitions, for people to look at."""

  def mean(x: jax.Array) -> jax.Array:
    return transitions_lib.mean_of_valid(x, errors.valid)

  return {
    'td_error': mean(jnp.abs(errors.error)),
    # Of the actions that were taken, and of the best ones; rescaled.
    'q_mean': mean(errors.target - errors.error),
    'q_max': mean(jnp.max(q_values, axis=-1)),
    'q_target': mean(errors.target),
    'masked_share': 1.0 - jnp.mean(errors.valid),
  }
