"""Ape-X DQN on Atari (arXiv 1803.00933): R2D2's agent without memory.

Environment conventions are the paper's: no sticky actions, the minimal action
set, clipped rewards, up to 30 no-ops, no FIRE at a reset, and a lost life sets
the discount to 0. As in R2D2, an episode has at most 108,000 frames.
docs/agents/r2d2.md lists the differences from the paper.
"""

from seedrl_jax.configs import base, r2d2_atari


def get_config() -> base.Config:
  config = r2d2_atari.get_config()
  config.env.zero_discount_on_life_loss = True
  config.env.reward_clip = True
  config.env.full_action_space = False
  config.unroll_length = 16
  config.burn_in = 0
  config.lookahead = 2
  config.batch_size = 32
  config.network.lstm_size = 0
  config.network.use_previous_action = False
  config.loss.n_steps = 3
  config.loss.discount = 0.99
  config.loss.rescale_epsilon = -1.0
  config.loss.reduction = 'mean'
  config.loss.priority_eta = 1.0
  config.optimizer.name = 'rmsprop'
  config.optimizer.learning_rate = 6.25e-5
  config.optimizer.epsilon = 1.5e-7
  config.optimizer.epsilon_inside_root = True
  config.optimizer.rmsprop_decay = 0.95
  config.optimizer.rmsprop_centered = True
  config.replay.priority_exponent = 0.6
  config.replay.importance_exponent = 0.4
  # 50,000 transitions.
  config.replay.min_size = 3_125
  return config
