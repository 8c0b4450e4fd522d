"""R2D2 on MiniGrid's memory task.

The agent sees an object, walks down a hall, and must choose the same one of
two. A single reward at the end is lower for longer ways.
"""

from seedrl_jax.configs import base, r2d2_cartpole


def get_config() -> base.Config:
  config = r2d2_cartpole.get_config()
  config.env.id = 'MiniGrid-MemoryS7-v0'
  config.total_env_frames = config.optimizer.decay_frames = 1_000_000
  config.env.num_envs = 32
  config.unroll_length = 30
  config.burn_in = 10
  config.network.hidden_sizes = (128,)
  config.network.lstm_size = 128
  config.network.head_hidden_size = 128
  # With the usual 0.4 hardly any episode ends before its time limit, and values
  # of wandering bootstrap each other.
  config.exploration.epsilon_base = 0.8
  config.replay.max_size = 10_000
  config.replay.min_size = 500
  config.replay.samples_per_insert = 4.0
  config.loss.target_update_period = 100
  config.loss.discount = 0.99
  return config
