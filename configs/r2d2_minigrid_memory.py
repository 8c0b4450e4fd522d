"""R2D2 on MiniGrid's memory task: which object was seen at the start.

The agent sees an object, walks down a hall, and must go to the one of two that
is the same. The reward comes once, at the end, and is lower for longer ways.
"""

import ml_collections

from configs import r2d2_base


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration."""
  config = r2d2_base.get_config()
  config.env.id = 'MiniGrid-MemoryS7-v0'
  config.total_env_frames = 2_000_000
  config.env.num_envs = 32
  config.unroll_length = 30
  config.burn_in = 10
  config.batch_size = 32
  config.network.hidden_sizes = (128,)
  config.network.lstm_size = 128
  config.network.head_hidden_size = 128
  config.loss.target_update_period = 200
  config.loss.discount = 0.99
  config.loss.reduction = 'mean'
  config.optimizer.learning_rate = 5e-4
  config.optimizer.epsilon = 1e-5
  config.optimizer.schedule = 'linear'
  config.replay.max_size = 10_000
  config.replay.min_size = 500
  config.replay.samples_per_insert = 4.0
  return config
