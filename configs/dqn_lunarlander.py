"""DQN on LunarLander-v2: minutes on two CPU cores.

The network and the Huber loss are those of Stable-Baselines3's tuned settings
(RL Baselines3 Zoo), which have one environment, 100,000 frames and 128 samples
of a transition. Here a million frames have 8 samples each.
"""

import ml_collections

from configs import dqn_cartpole


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration."""
  config = dqn_cartpole.get_config()
  config.total_env_frames = 1_000_000
  config.env.id = 'LunarLander-v2'
  config.network.hidden_sizes = (256, 256)
  config.loss.huber_delta = 1.0
  config.loss.target_update_period = 500
  config.exploration.decay_frames = 200_000
  config.optimizer.learning_rate = 6.3e-4
  config.replay.max_size = 100_000
  config.replay.samples_per_insert = 8.0
  return config
