"""Optimisers and learning rates from the configuration."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import optax


def learning_rate(
  config: ml_collections.ConfigDict,
) -> Callable[[jax.Array], jax.Array]:
  """Returns the learning rate as a function of the share of frames done.

  The total number of updates is not known ahead.
  """
  settings = config.optimizer
  first, final = settings.learning_rate, settings.final_learning_rate
  if settings.schedule == 'constant':
    return lambda progress: jnp.float32(first)

  def linear(progress: jax.Array) -> jax.Array:
    share = jnp.minimum(progress, 1.0)
    return (1.0 - share) * first + share * final

  return linear


def make_optimizer(
  config: ml_collections.ConfigDict,
) -> optax.GradientTransformation:
  """Makes the optimiser: global-norm clip, then Adam or RMSProp.

  It has a learning rate of 1; multiply its updates by `learning_rate`.
  RMSProp's momentum is therefore PyTorch's. `epsilon_inside_root` selects
  TensorFlow's sqrt(mean square + epsilon) instead of PyTorch's sqrt(mean
  square) + epsilon.
  """
  settings = config.optimizer
  if settings.name == 'adam':
    scale = optax.adam(
      1.0,
      b1=settings.adam_b1,
      b2=settings.adam_b2,
      eps=0.0 if settings.epsilon_inside_root else settings.epsilon,
      eps_root=settings.epsilon if settings.epsilon_inside_root else 0.0,
    )
  else:
    scale = _rmsprop(settings)
  clip = (
    optax.clip_by_global_norm(settings.clip_norm)
    if settings.clip_norm
    else optax.identity()
  )
  return optax.chain(clip, scale)


def _rmsprop(
  settings: ml_collections.ConfigDict,
) -> optax.GradientTransformation:
  if not settings.rmsprop_centered:
    return optax.rmsprop(
      1.0,
      decay=settings.rmsprop_decay,
      eps=settings.epsilon,
      eps_in_sqrt=settings.epsilon_inside_root,
      initial_scale=settings.rmsprop_initial_scale,
      momentum=settings.rmsprop_momentum or None,
    )
  momentum = settings.rmsprop_momentum
  return optax.chain(
    scale_by_deviation(
      settings.rmsprop_decay,
      settings.epsilon,
      settings.epsilon_inside_root,
      settings.rmsprop_initial_scale,
    ),
    optax.scale_by_learning_rate(1.0),
    optax.trace(momentum) if momentum else optax.identity(),
  )


class DeviationState(NamedTuple):
  """Running mean and variance of the gradient, like the parameters."""

  mean: optax.Params
  variance: optax.Params


def scale_by_deviation(
  decay: float,
  epsilon: float,
  epsilon_inside_root: bool,
  initial_variance: float = 0.0,
) -> optax.GradientTransformation:
  """Divides a gradient by its standard deviation: centered RMSProp.

  RMSProp of Graves 2013 (arXiv 1308.0850). optax's mean square less the squared
  mean can round to a negative number, whose root is NaN. This tracks the
  variance itself, v' = d (v + (1 - d) (g - m)^2), which is never negative.

  Args:
    decay: d, of both averages.
    epsilon: added to the variance, or to its root.
    epsilon_inside_root: whether to the variance.
    initial_variance: before the first gradient.
  """

  def init(params: optax.Params) -> DeviationState:
    return DeviationState(
      optax.tree.zeros_like(params),
      optax.tree.full_like(params, initial_variance),
    )

  def scale(gradient: jax.Array, variance: jax.Array) -> jax.Array:
    if epsilon_inside_root:
      return gradient * jax.lax.rsqrt(variance + epsilon)
    return gradient / (jnp.sqrt(variance) + epsilon)

  def update(
    updates: optax.Updates,
    state: DeviationState,
    params: optax.Params | None = None,
  ) -> tuple[optax.Updates, DeviationState]:
    del params
    variance = jax.tree.map(
      lambda g, m, v: decay * (v + (1.0 - decay) * jnp.square(g - m)),
      updates,
      state.mean,
      state.variance,
    )
    mean = optax.tree.update_moment(updates, state.mean, decay, 1)
    scaled = jax.tree.map(scale, updates, variance)
    return scaled, DeviationState(mean, variance)

  return optax.GradientTransformation(init, update)
