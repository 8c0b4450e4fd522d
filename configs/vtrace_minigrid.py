"""V-trace on MiniGrid: a dict observation of direction and image."""

from seedrl_jax.configs import base, vtrace_cartpole


def get_config() -> base.Config:
  config = vtrace_cartpole.get_config()
  config.total_env_frames = config.optimizer.decay_frames = 1_000_000
  config.env.id = 'MiniGrid-Empty-8x8-v0'
  config.optimizer.learning_rate = 1e-3
  # A single reward of at most 1 per episode.
  config.loss.reward_scale = 1.0
  return config
