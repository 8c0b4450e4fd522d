"""V-trace on CartPole-v1: the first run, two minutes on two CPU cores."""

import ml_collections

from configs import base


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration."""
  config = base.get_config()
  config.env.id = 'CartPole-v1'
  config.batch_size = 32
  return config
