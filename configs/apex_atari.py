"""Ape-X DQN on Atari (arXiv 1803.00933): R2D2's agent without memory.

A feed-forward dueling network, three-step targets in the rewards' own scale,
Ape-X's exponents, optimiser and target period. An item of the replay is 16
transitions and the steps that their last targets need, in place of one: the
frames of overlapping items are then stored 1.2 times and not 4 times over. So
100,000 items are 1.6 million transitions (Ape-X: 2 million), a batch of 32
items is 512 transitions, and an item's priority is its largest error
(priority_eta 1). Single transitions, as published, are
--config.unroll_length=1 --config.batch_size=512.
Environment conventions are those of the paper: an episode ends with a life,
rewards are clipped.
"""

import ml_collections

from configs import r2d2_atari


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration."""
  config = r2d2_atari.get_config()
  config.env.episodic_life = True
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
