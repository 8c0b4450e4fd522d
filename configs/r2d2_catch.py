"""R2D2 on Catch-v0: a minute on two CPU cores."""

from seedrl_jax.configs import base, r2d2_cartpole


def get_config() -> base.Config:
  config = r2d2_cartpole.get_config()
  config.env.id = 'Catch-v0'
  config.total_env_frames = config.optimizer.decay_frames = 100_000
  # An episode has nine transitions and its reset.
  config.unroll_length = 10
  config.burn_in = 0
  config.loss.discount = 0.99
  return config
