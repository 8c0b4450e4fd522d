"""R2D2 on CartPole-v1: minutes on two CPU cores.

Start from here for your own task with small vector observations.
"""

from seedrl_jax.configs import base, r2d2_base


def get_config() -> base.Config:
  config = r2d2_base.get_config()
  config.total_env_frames = config.optimizer.decay_frames = 300_000
  config.env.num_envs = 16
  config.unroll_length = 20
  config.burn_in = 5
  config.batch_size = 32
  config.network.hidden_sizes = (64,)
  config.network.lstm_size = 64
  config.network.head_hidden_size = 64
  # A target looks n_steps ahead, so it takes many copies until the end of an
  # episode counts at its beginning; and with a smaller discount it hardly does:
  # policies that drift off the track after 200 steps stay as they are.
  config.loss.target_update_period = 25
  config.loss.discount = 0.995
  config.loss.reduction = 'mean'
  config.optimizer.learning_rate = 1e-3
  config.optimizer.epsilon = 1e-5
  config.optimizer.schedule = 'linear'
  config.replay.max_size = 5_000
  config.replay.min_size = 250
  # More than in the paper: here frames are scarce, not cores.
  config.replay.samples_per_insert = 8.0
  return config
