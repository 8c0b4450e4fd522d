"""R2D2 on Catch-v0: a minute on two CPU cores."""

import ml_collections

from seedrl_jax.configs import r2d2_cartpole


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration."""
  config = r2d2_cartpole.get_config()
  config.env.id = 'Catch-v0'
  config.total_env_frames = config.optimizer.decay_frames = 100_000
  # An episode has nine transitions and its reset.
  config.unroll_length = 10
  config.burn_in = 0
  config.loss.discount = 0.99
  return config
