"""V-trace on Catch-v0, solved in seconds on two CPU cores."""

from seedrl_jax.configs import base


def get_config() -> base.Config:
  config = base.get_config()
  config.env.id = 'Catch-v0'
  config.total_env_frames = config.optimizer.decay_frames = 200_000
  config.env.num_envs = 32
  config.batch_size = 16
  config.unroll_length = 9
  config.optimizer.learning_rate = 3e-3
  config.optimizer.clip_norm = 0.5
  return config
