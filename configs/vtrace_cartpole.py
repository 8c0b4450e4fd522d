"""V-trace on CartPole-v1: the first run, seconds on two CPU cores."""

from seedrl_jax.configs import base


def get_config() -> base.Config:
  config = base.get_config()
  config.loss.lambda_ = 0.95
  # Returns are tens of units, of both signs: unscaled, the policy collapses
  # before the baseline has caught up (most clearly on Acrobot).
  config.loss.reward_scale = 0.1
  config.optimizer.learning_rate = 2e-3
  config.optimizer.decay_frames = config.total_env_frames
  # As in PPO: keeps the first updates' large value errors out of Adam's
  # moments.
  config.optimizer.clip_norm = 0.5
  return config
