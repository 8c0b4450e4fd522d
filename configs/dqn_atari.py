"""DQN on Atari as in Nature (Mnih et al. 2015); Pong by default.

R2D2's agent without memory, double Q-learning, dueling and priorities. Settings
are the paper's, with RMSProp's epsilon as in DQN Zoo: Nature's network, one
million transitions, the first update at 50,000, 32 transitions an update and
one update in 4 steps (a transition is sampled 8 times), a target every 40,000
frames, centered RMSProp, TD errors clipped to 1, epsilon from 1 to 0.1 in 4
million frames, 0.05 in evaluation, 200 million frames in all. Environment
conventions are the paper's: no sticky actions, the minimal action set, clipped
rewards, up to 30 no-ops, no FIRE at a reset, at most 108,000 frames, and a lost
life sets the discount to 0. Differences:

* A replay item has 4 transitions, not one: with single ones, each item would
  store two frames and the three before them, 35 GB for a million. Items of 4
  store 8 frames, 14 GB, which Reverb compresses to a small part of that. A
  batch is 8 items of 4 neighbours, so its errors are less independent. As
  published: --config.unroll_length=1 --config.batch_size=32
  --config.replay.max_size=1000000 --config.replay.min_size=50000.
* 64 environments (1), and 4 for evaluation. They act with parameters that are
  some 16 updates old.
* Updates keep to one in 4 steps, give or take 5,000 steps.
* Epsilon decays from the first frame on (from the first update on).
* A lost life does not reset the frame stack.
* Frames before an episode are zero, not copies of its first.
* Initial weights are orthogonal, and normal in the last layer (uniform).
"""

import ml_collections

from seedrl_jax.configs import apex_atari


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration."""
  config = apex_atari.get_config()
  config.unroll_length = 4
  config.lookahead = 0
  config.batch_size = 8
  config.network.dueling = False
  config.network.head_hidden_size = 0
  config.loss.n_steps = 1
  config.loss.double_q = False
  config.loss.huber_delta = 1.0
  config.loss.target_update_period = 2_500
  config.exploration.schedule = 'linear'
  config.exploration.eval_epsilon = 0.05
  config.optimizer.learning_rate = 2.5e-4
  config.optimizer.epsilon = 0.01 / 32**2
  config.optimizer.clip_norm = 0.0
  config.replay.sampler = 'uniform'
  config.replay.importance_exponent = 0.0
  config.replay.max_size = 250_000
  config.replay.min_size = 12_500
  config.replay.samples_per_insert = 8.0
  return config
