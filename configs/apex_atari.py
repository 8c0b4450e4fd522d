"""Ape-X DQN on Atari (arXiv 1803.00933): R2D2's agent without memory.

A feed-forward dueling network, three-step targets in the rewards' own scale,
Ape-X's exponents, optimiser and target period. Environment conventions are
those of the paper: a lost life cuts the return off, rewards are clipped, up to
30 no-ops, no FIRE at a reset. Ours differ:

* An item of the replay is 16 transitions and the steps that their last targets
  need, in place of one: the frames of overlapping items are then stored 1.2
  times and not 4 times over. So 100,000 items are 1.6 million transitions
  (Ape-X: 2 million), a batch of 32 items is 512 transitions, and an item's
  priority is its largest error (priority_eta 1). Single transitions, as
  published, are --config.unroll_length=1 --config.batch_size=512.
* The replay ratio is held at R2D2's 1.5. Ape-X's learner runs free: 19 batches
  of 512 and 12,500 new transitions a second, a ratio of some 0.8.
* 64 training environments in place of 360 actors, the minimal action set, and
  evaluation at R2D2's epsilon of 0.001.
* 200 million frames, and R2D2's limit of an episode, 108,000 frames.
* An episode goes on after a lost life, whose discount is 0, in place of a reset
  of what the agent sees: frames stay stacked over it.
"""

import ml_collections

from configs import r2d2_atari


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration."""
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
