"""GORILA (Nair et al. 2015, arXiv 1507.04296) on CartPole-v1.

For launch/train_async.py: workers with a replay each ("bundled") send gradients
to a sharded parameter server, which applies AdaGrad and copies the target
network; gradients that are too old, or of outlying losses, are discarded. The
paper publishes neither bound, nor a learning rate. The rest is `dqn_cartpole`,
with 8 environments in each worker (one, and an update for each step).
"""

import ml_collections

from seedrl_jax.configs import dqn_cartpole


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration."""
  config = dqn_cartpole.get_config()
  config.env.num_envs = 8
  config.asynchronous.share = 'server'
  config.asynchronous.shards = 2
  config.asynchronous.max_staleness = 20
  config.asynchronous.outlier_deviations = 10.0
  config.optimizer.name = 'adagrad'
  config.optimizer.learning_rate = 0.02
  # AdaGrad's steps become smaller by themselves.
  config.optimizer.schedule = 'constant'
  config.replay.min_size = 5_000
  return config
