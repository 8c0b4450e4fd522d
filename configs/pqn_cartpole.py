"""PQN on CartPole-v1: half a minute on two CPU cores.

Settings of the authors' CartPole (purejaxql, the code of arXiv 2407.04811),
with minibatches of two unrolls of 64 steps instead of 128 single steps, and
orthogonal initial weights. A truncated episode bootstraps. Acting and training
overlap.
"""

from seedrl_jax.agents.pqn import keys as pqn_keys
from seedrl_jax.configs import base


def get_config() -> base.Config:
  config = base.get_config(pqn_keys.set_defaults)
  config.total_env_frames = config.optimizer.decay_frames = 500_000
  config.env.num_envs = 32
  config.unroll_length = 64
  config.epochs, config.minibatches = 4, 16
  config.network.hidden_sizes = (256, 256)
  config.loss.lambda_ = 0.95
  config.loss.reward_scale = 0.1
  config.exploration.final_epsilon = 0.2
  config.exploration.decay_share = 0.2
  config.optimizer.learning_rate = 1e-4
  config.optimizer.schedule = 'linear'
  return config
