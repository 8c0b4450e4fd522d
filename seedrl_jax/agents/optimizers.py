"""Optimisers of `config.optimizer`: their steps and learning rates."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from seedrl_jax import types
from seedrl_jax.agents import base
from seedrl_jax.networks import pixels


def make(config: types.Config) -> optax.GradientTransformation:
  """Makes the optimiser: a clip of the global norm, then the one named.

  It has a learning rate of 1; multiply its updates by `learning_rate`.
  Momentum is therefore PyTorch's. `epsilon_inside_root` selects
  TensorFlow's sqrt(mean square + epsilon) instead of PyTorch's sqrt(mean
  square) + epsilon.
  """
  settings = config.optimizer
  epsilon, inside = settings.epsilon, settings.epsilon_inside_root
  clip = momentum = optax.identity()
  if settings.clip_norm:
    clip = optax.clip_by_global_norm(settings.clip_norm)
  if settings.name in ('adam', 'radam'):
    adam = settings.name == 'adam'
    scale = (optax.scale_by_adam if adam else optax.scale_by_radam)(
      settings.adam_b1,
      settings.adam_b2,
      eps=0.0 if inside else epsilon,
      eps_root=epsilon if inside else 0.0,
    )
  elif settings.name == 'rmsprop':
    centered = settings.rmsprop_centered
    scale = (scale_by_deviation if centered else optax.scale_by_rms)(
      settings.rmsprop_decay,
      epsilon,
      settings.rmsprop_initial_scale,
      eps_in_sqrt=inside,
    )
    if settings.rmsprop_momentum:
      momentum = optax.trace(settings.rmsprop_momentum)
  elif settings.name == 'adagrad':
    scale = optax.scale_by_rss(0.0, epsilon)
  else:
    scale = optax.identity()
    if settings.sgd_momentum:
      momentum = optax.trace(settings.sgd_momentum)
  return optax.chain(clip, scale, momentum, optax.scale(-1.0))


def learning_rate(config: types.Config) -> Callable[[jax.Array], jax.Array]:
  """Returns the learning rate as a function of the run's progress, in [0, 1].

  Progress counts frames, because the number of updates is not known in advance.
  """
  settings = config.optimizer
  first, final = settings.learning_rate, settings.final_learning_rate
  total = config.total_env_frames
  # The decay ends at `progress * decay == 1`.
  decay = total / (settings.decay_frames or total)
  if settings.schedule == 'constant':
    decay = 0.0
  warmup = total / settings.warmup_frames if settings.warmup_frames else None

  def rate(progress: jax.Array) -> jax.Array:
    share = jnp.minimum(progress * decay, 1.0)
    decayed = (1.0 - share) * first + share * final
    if warmup is None:
      return decayed
    return jnp.minimum(progress * warmup, 1.0) * decayed

  return rate


def apply_gradient(
  optimizer: optax.GradientTransformation,  # for a learning rate of 1
  learning_rate: jax.Array,  # float32 scalar
  gradient: base.Params,  # the mean over devices
  state: Any,  # of an agent, of which `params` and `opt_state` are read
  clip_norm: float,  # see `gradient_metrics`
  # Changes the updates, if only of some parameters.
  scale: Callable[[base.Params], base.Params] = lambda updates: updates,
) -> tuple[base.Params, optax.OptState, dict[str, jax.Array]]:
  """Returns parameters and optimiser's state after a step, and metrics.

  These are not finite if the step is not: an optimiser can divide by zero
  though the gradient is finite.
  """
  params = state.params
  updates, opt_state = optimizer.update(gradient, state.opt_state, params)
  updates = scale(optax.tree.scale(learning_rate, updates))
  metrics = gradient_metrics(gradient, clip_norm)
  metrics |= update_metrics(updates, params)
  return optax.apply_updates(params, updates), opt_state, metrics


def all_finite(scalars: Mapping[str, jax.Array]) -> jax.Array:
  """Returns whether all scalars are finite, bool."""
  return jnp.isfinite(jnp.stack(list(scalars.values()))).all()


def gradient_metrics(
  grads: base.Params, clip_norm: float
) -> dict[str, jax.Array]:
  """Returns a gradient's norm, and whether `clip_norm` clips it (0: no)."""
  norm = optax.tree.norm(grads)
  if not clip_norm:
    return {'gradient_norm': norm}
  clipped = jnp.float32(norm > clip_norm)
  return {'gradient_norm': norm, 'health/clipped_share': clipped}


def update_metrics(
  updates: base.Params, params: base.Params
) -> dict[str, jax.Array]:
  """Returns an update's norm, absolute and relative to the parameters'."""
  norm = optax.tree.norm(updates)
  ratio = norm / jnp.maximum(optax.tree.norm(pixels.trained(params)), 1e-8)
  return {'update_norm': norm, 'health/update_ratio': ratio}


class DeviationState(NamedTuple):
  """Running mean and variance of the gradient, like the parameters."""

  mean: optax.Params
  variance: optax.Params


def scale_by_deviation(
  decay: float, eps: float, initial_variance: float, eps_in_sqrt: bool
) -> optax.GradientTransformation:
  """Divides a gradient by its standard deviation: centered RMSProp.

  RMSProp of Graves 2013 (arXiv 1308.0850). optax's mean square less the squared
  mean can round to a negative number, whose root is NaN. This tracks the
  variance itself, v' = d (v + (1 - d) (g - m)^2), which is never negative.

  `decay` is d. `eps` is added to the variance if `eps_in_sqrt`, or to its root.
  """

  def init(params: optax.Params) -> DeviationState:
    return DeviationState(
      optax.tree.zeros_like(params),
      optax.tree.full_like(params, initial_variance),
    )

  def scale(gradient: jax.Array, variance: jax.Array) -> jax.Array:
    if eps_in_sqrt:
      return gradient * jax.lax.rsqrt(variance + eps)
    return gradient / (jnp.sqrt(variance) + eps)

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
