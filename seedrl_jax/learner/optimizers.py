"""Optimisers by configuration; the learner's only source of them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax


def num_updates(config: Any, action_repeat: int) -> int:
  """Returns how many updates the run's frames make, at least 1.

  Counts every frame as trained on `samples_per_insert` times. Demonstrations
  are no frames of the run: of them an update's batch holds only what is left.
  """
  own = config.batch_size * (1.0 - config.demonstrations.fraction)
  frames_per_update = own * config.unroll_length * action_repeat
  total = config.total_env_frames * config.replay.samples_per_insert
  return max(1, int(total // frames_per_update))


def learning_rate(config: Any, action_repeat: int) -> optax.Schedule:
  """Returns the learning rate as a function of the update.

  Args:
    config: the run's configuration; `config.optimizer` is read here.
    action_repeat: frames of one environment step.

  Raises:
    ValueError: where the schedule has no such name, or is linear and the
      configuration does not say how many updates there are.
  """
  settings = config.optimizer
  if settings.schedule == 'constant':
    return optax.constant_schedule(settings.learning_rate)
  if settings.schedule == 'linear':
    if not config.replay.samples_per_insert:
      raise ValueError(
        '--config.optimizer.schedule=linear needs to know how many updates the '
        'run makes, which --config.replay.samples_per_insert=0 leaves open; '
        "take 'constant' or give a ratio."
      )
    return optax.linear_schedule(
      settings.learning_rate,
      settings.final_learning_rate,
      num_updates(config, action_repeat),
    )
  raise ValueError(
    f'--config.optimizer.schedule={settings.schedule} is unknown; take '
    "'linear' or 'constant'."
  )


def make_optimizer(
  config: Any, action_repeat: int
) -> optax.GradientTransformation:
  """Makes the optimiser: global-norm clip, then Adam or RMSProp.

  `epsilon_inside_root` tells the two RMSProps that IMPALA reproductions use
  apart: TensorFlow divides by sqrt(mean square + epsilon), PyTorch by
  sqrt(mean square) + epsilon.

  Raises:
    ValueError: see `learning_rate`.
  """
  settings = config.optimizer
  rate = learning_rate(config, action_repeat)
  if settings.name == 'adam':
    scale = optax.adam(
      rate,
      b1=settings.adam_b1,
      b2=settings.adam_b2,
      eps=0.0 if settings.epsilon_inside_root else settings.epsilon,
      eps_root=settings.epsilon if settings.epsilon_inside_root else 0.0,
    )
  else:
    scale = _rmsprop(settings, rate)
  clip = (
    optax.clip_by_global_norm(settings.clip_norm)
    if settings.clip_norm
    else optax.identity()
  )
  return optax.chain(clip, scale)


def _rmsprop(
  settings: Any, rate: optax.Schedule
) -> optax.GradientTransformation:
  if not settings.rmsprop_centered:
    return optax.rmsprop(
      rate,
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
    optax.scale_by_learning_rate(rate),
    optax.trace(momentum) if momentum else optax.identity(),
  )


class DeviationState(NamedTuple):
  """Running mean and variance of the gradient, nests like the parameters."""

  mean: optax.Params
  variance: optax.Params


def scale_by_deviation(
  decay: float,
  epsilon: float,
  epsilon_inside_root: bool,
  initial_variance: float = 0.0,
) -> optax.GradientTransformation:
  """Divides a gradient by its standard deviation: centered RMSProp.

  RMSProp of Graves 2013 (arXiv 1308.0850). optax subtracts the squared mean
  from the mean square, which in float32 falls below -epsilon where a gradient
  hardly varies: its root is then no number. This follows the variance itself,
  v' = d (v + (1 - d) (g - m)^2), which is the same and never negative.

  Args:
    decay: d, of both averages.
    epsilon: added to the variance, or to its root.
    epsilon_inside_root: which of the two.
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
