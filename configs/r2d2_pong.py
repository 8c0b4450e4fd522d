"""R2D2 on Pong for small hosts, in an evening.

Many updates from few frames: as `r2d2_atari`, with a smaller network, shorter
sequences and smaller batches. Environment conventions are those of SEED's R2D2
with fewer actions: no sticky actions, the minimal action set, unclipped
rewards, up to 30 no-ops, no FIRE at a reset, at most 108,000 frames, and a lost
life has no effect on episode or discount.
"""

from seedrl_jax.configs import base, r2d2_atari


def get_config() -> base.Config:
  config = r2d2_atari.get_config()
  config.total_env_frames = 20_000_000
  config.num_eval_envs = 2
  config.env.num_envs = 16
  config.env.full_action_space = False
  config.unroll_length = 20
  config.burn_in = 4
  config.batch_size = 16
  config.network.torso = 'shallow'
  config.network.lstm_size = 128
  config.network.head_hidden_size = 128
  config.loss.discount = 0.99
  config.loss.reduction = 'mean'
  config.loss.target_update_period = 500
  config.optimizer.learning_rate = 3e-4
  config.optimizer.epsilon = 1e-5
  # 200,000 steps, 1.4 GB if frames are not compressed.
  config.replay.max_size = 10_000
  config.replay.min_size = 500
  config.replay.samples_per_insert = 4.0
  return config
