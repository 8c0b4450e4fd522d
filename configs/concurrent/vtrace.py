"""V-trace with central inference on LunarLander-v2, for the study.

Network, learning rate and discount are those of `concurrent/a3c`; 16
environments, and batches of 4 unrolls of 20 steps, as each worker has there.
"""

from seedrl_jax.configs import base
from seedrl_jax.configs.concurrent import a3c


def get_config() -> base.Config:
  config = a3c.get_config()
  config.env.num_envs = 16
  config.learner.max_lag = None
  return config
