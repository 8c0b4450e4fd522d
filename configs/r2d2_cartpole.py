"""R2D2 on CartPole-v1: minutes on two CPU cores."""

import ml_collections

from configs import r2d2_small


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration."""
  config = r2d2_small.get_config()
  config.total_env_frames = 300_000
  config.loss.discount = 0.98
  return config
