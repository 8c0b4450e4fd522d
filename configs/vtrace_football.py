"""V-trace on Google Research Football, as SEED RL's public configuration.

Unroll 32, discount 0.997, lambda 0.9, entropy cost 3e-5, Adam at 5.5e-5,
unclipped gradients and rewards, deep ResNet of four stacks without an LSTM.
docs/agents/vtrace.md lists the differences.
"""

from seedrl_jax.configs import base


def get_config() -> base.Config:
  config = base.get_config()
  config.total_env_frames = 500_000_000
  config.num_eval_envs = 4
  config.unroll_length = 32
  config.env.id = 'gfootball/academy_empty_goal-v1'
  config.env.num_envs = 64
  config.network.torso = 'resnet'
  config.network.resnet_channels = (16, 32, 32, 32)
  config.network.frame_stack = 4
  config.loss.discount = 0.997
  config.loss.lambda_ = 0.9
  config.loss.entropy_cost = 3e-5
  config.optimizer.learning_rate = 5.5e-5
  config.optimizer.clip_norm = 0.0
  config.optimizer.schedule = 'constant'
  return config
