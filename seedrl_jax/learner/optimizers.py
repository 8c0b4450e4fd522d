"""Optimisers by configuration; the learner's only source of them."""

from typing import Any

import optax


def num_updates(config: Any, action_repeat: int) -> int:
  """Returns how many updates the run's frames make, at least 1.

  Counts every frame as trained on `samples_per_insert` times.
  """
  frames_per_update = config.batch_size * config.unroll_length * action_repeat
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
    ValueError: where the name or schedule is unknown.
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
  elif settings.name == 'rmsprop':
    scale = optax.rmsprop(
      rate,
      decay=settings.rmsprop_decay,
      eps=settings.epsilon,
      eps_in_sqrt=settings.epsilon_inside_root,
      initial_scale=settings.rmsprop_initial_scale,
      centered=settings.rmsprop_centered,
      momentum=settings.rmsprop_momentum or None,
    )
  else:
    raise ValueError(
      f"--config.optimizer.name={settings.name} is unknown; take 'adam' or "
      "'rmsprop'."
    )
  clip = (
    optax.clip_by_global_norm(settings.clip_norm)
    if settings.clip_norm
    else optax.identity()
  )
  return optax.chain(clip, scale)
