"""PPO's advantages and its loss (Schulman et al. 2017, arXiv 1707.06347)."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from seedrl_jax import types
from seedrl_jax.agents import base
from seedrl_jax.agents import transitions as transitions_lib
from seedrl_jax.networks import distributions, heads

# Keeps advantages that do not vary from being divided by 0.
_EPSILON = 1e-8


class Samples(NamedTuple):
  """What the loss needs of transitions besides the network, all `[...]`."""

  weight: jax.Array  # float32, 0 if not valid; 1 on average over a batch
  action: jax.Array  # [..., *shape]
  log_prob: jax.Array  # float32, log mu(a)
  value: jax.Array  # float32, V(x) before the update
  target: jax.Array  # float32, of V(x)
  advantage: jax.Array  # float32


def advantages(
  transitions: transitions_lib.Transitions, values: jax.Array, lambda_: float
) -> jax.Array:
  """Returns generalised advantage estimates, float32 `[T, B]`.

  Schulman et al. 2016 (arXiv 1506.02438, equation 16). A truncated episode's
  last transition bootstraps from V(x_LAST); an invalid one has advantage 0.

  Args:
    transitions: `[T, B]`.
    values: float32 `[T + 1, B]`, V(x).
    lambda_: 1 for Monte Carlo returns, 0 for one-step errors.
  """
  length, batch = transitions.reward.shape
  chex.assert_shape(values, (length + 1, batch))
  errors = transitions.reward + transitions.discount * values[1:] - values[:-1]
  return transitions_lib.sums_to_go(
    jnp.where(transitions.valid, errors, 0.0), lambda_ * transitions.discount
  )


def normalized(advantage: jax.Array, weight: jax.Array) -> jax.Array:
  """Scales advantages to mean 0 and deviation 1, over all devices' samples.

  Under `base.AXIS`; `weight` is as in `Samples`.
  """

  def mean(x: jax.Array) -> jax.Array:
    return base.mean_over_devices(jnp.mean(weight * x))

  # A minibatch may have more or less than its share of the weight.
  total = jnp.maximum(mean(jnp.ones_like(advantage)), _EPSILON)
  centered = advantage - mean(advantage) / total
  variance = mean(jnp.square(centered)) / total
  return centered / (jnp.sqrt(variance) + _EPSILON)


def value_metrics(samples: Samples) -> dict[str, jax.Array]:
  """Returns means over all devices' samples, under `base.AXIS`."""

  def mean(x: jax.Array) -> jax.Array:
    return base.mean_over_devices(jnp.mean(samples.weight * x))

  target = mean(samples.target)
  variance = mean(jnp.square(samples.target - target))
  error = samples.target - samples.value
  error_variance = mean(jnp.square(error - mean(error)))
  return {
    'value_mean': mean(samples.value),
    'value_target': target,
    'explained_variance': 1.0 - error_variance / jnp.maximum(variance, 1e-8),
  }


def ppo_loss(
  config: types.Config,
  distribution: distributions.Distribution,
  outputs: heads.ActorCriticOutput,
  samples: Samples,
  deviation: jax.Array | float = 1.0,
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Computes the clipped objective (equations 7 and 9) of `config.loss`.

  Errors of values are in units of PopArt's `deviation`.

  Returns:
    the weighted mean over samples, which is the mean of equal pieces' losses,
    and metrics that are so, too.
  """
  chex.assert_equal_shape([outputs.baseline, samples.weight])

  def mean(x: jax.Array) -> jax.Array:
    return jnp.mean(samples.weight * x)

  log_prob = distribution.log_prob(outputs.policy, samples.action)
  log_ratio = jnp.where(samples.weight > 0, log_prob - samples.log_prob, 0.0)
  ratio = jnp.exp(log_ratio)
  clipped = jnp.clip(ratio, 1.0 - config.clip, 1.0 + config.clip)
  policy_loss = -mean(
    jnp.minimum(ratio * samples.advantage, clipped * samples.advantage)
  )
  value = outputs.baseline
  error = jnp.square((samples.target - value) / deviation)
  if clip := config.value_clip:
    # A value gains nothing from going further from where it was before.
    change = jnp.clip((value - samples.value) / deviation, -clip, clip)
    before = (samples.target - samples.value) / deviation
    error = jnp.maximum(error, jnp.square(before - change))
  baseline_loss = mean(0.5 * error)
  entropy = mean(distribution.entropy(outputs.policy))
  loss = (
    policy_loss
    + config.baseline_cost * baseline_loss
    - config.entropy_cost * entropy
  )
  metrics = {}
  if max_entropy := distribution.max_entropy:
    metrics['health/entropy_share'] = entropy / max_entropy
  return loss, metrics | {
    'policy': policy_loss,
    'baseline': baseline_loss,
    'entropy': entropy,
    # An estimate of KL(mu, pi) that is never negative.
    'kl': mean(ratio - 1.0 - log_ratio),
    'rho': mean(ratio),
    'rho_clipped_share': mean(ratio != clipped),
  }
