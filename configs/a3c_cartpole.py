"""A3C (Mnih et al. 2016, arXiv 1602.01783) on CartPole-v1.

For launch/train_async.py: workers update shared parameters without locks, every
5 steps, with RMSProp whose statistics they share, as published. The rest is
`a2c_cartpole`, with 8 environments in each worker (1).
"""

import ml_collections

from seedrl_jax.configs import a2c_cartpole


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration."""
  config = a2c_cartpole.get_config()
  config.env.num_envs = 8
  config.batch_size = 8
  return config
