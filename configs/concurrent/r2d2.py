"""R2D2 with central inference on LunarLander-v2, for the study.

`r2d2_cartpole`, with two layers of 64 before the LSTM as the study's DQN has,
its discount, an epsilon that decays to 0.01, Huber loss, and a target copied
every 100 updates.
"""

from seedrl_jax.configs import base, r2d2_cartpole


def get_config() -> base.Config:
  config = r2d2_cartpole.get_config()
  base.set_concurrent_task(config)
  config.network.hidden_sizes = (64, 64)
  config.loss.discount = 0.99
  config.loss.huber_delta = 1.0
  config.loss.target_update_period = 100
  config.exploration.schedule = 'linear'
  config.exploration.final_epsilon = 0.01
  config.exploration.decay_frames = 300_000
  config.optimizer.learning_rate = 6e-4
  return config
