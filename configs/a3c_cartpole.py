"""A3C (Mnih et al. 2016, arXiv 1602.01783) on CartPole-v1.

For launch/train_async.py: workers update shared parameters without locks, every
5 steps, with RMSProp whose statistics they share, as published. Each has the 16
environments of `a2c_cartpole` (1): with two workers of 8, 2/4 seeds
forgot what they had learned, with a lock, too.
"""

from seedrl_jax.configs import a2c_cartpole, base


def get_config() -> base.Config:
  config = a2c_cartpole.get_config()
  config.asynchronous.share = 'hogwild'
  config.asynchronous.shared_statistics = True
  return config
