"""R2D2 with SEED RL's settings; the keys that all R2D2 configs start from.

What is not here is as in `configs/base.py`. Sizes are those of SEED's Atari
runs; the environment is CartPole-v1 until a config says otherwise.
"""

import ml_collections

from configs import base


def get_config() -> ml_collections.ConfigDict:
  """Returns R2D2 on CartPole-v1 with everything at its default."""
  config = base.get_config()
  config.agent = 'r2d2'
  # A sequence has burn_in + unroll_length + lookahead + 1 steps, of which
  # unroll_length transitions are trained; the next one of the environment
  # begins unroll_length steps later. The R2D2 paper has 80, SEED 100.
  config.unroll_length = 100
  # Steps before the trained ones that only warm up the recurrent state of both
  # networks, from the stored one, without gradient.
  config.burn_in = 40
  # Steps after the trained ones, for the rewards of the last targets. With
  # loss.n_steps - 1 all have their n rewards, which single transitions
  # (unroll_length 1) need; with 0, as published, the last ones bootstrap from
  # the sequence's last step with what rewards remain.
  config.lookahead = 0
  config.batch_size = 64
  config.loss = _loss()
  config.exploration = _exploration()
  config.network.lstm_size = 512
  config.network.use_previous_action = True
  # As SEED's R2D2; its V-trace agents clip.
  config.network.previous_reward_clip = 0.0
  # Value and advantage streams, or a single one.
  config.network.dueling = True
  # Hidden units of each stream. 0: linear.
  config.network.head_hidden_size = 512
  config.optimizer.learning_rate = 4.8e-4
  config.optimizer.epsilon = 1e-3
  config.optimizer.schedule = 'constant'
  config.replay.sampler = 'prioritized'
  # Sequences.
  config.replay.max_size = 100_000
  config.replay.max_times_sampled = 0
  config.replay.samples_per_insert = 1.5
  # Sequences before the first update.
  config.replay.min_size = 5_000
  config.replay.priority_exponent = 0.9
  config.replay.importance_exponent = 0.6
  return config


def _loss() -> ml_collections.ConfigDict:
  """Q-learning over sequences (Kapturowski et al., ICLR 2019)."""
  return ml_collections.ConfigDict({
    'discount': 0.997,
    # Rewards of a target before it bootstraps.
    'n_steps': 5,
    # The online network chooses the action that the target network values;
    # False: the target network does both.
    'double_q': True,
    # Linear part of the value rescaling h; negative: values are not rescaled.
    'rescale_epsilon': 1e-3,
    # TD error beyond which the loss is linear; 0: squared everywhere.
    'huber_delta': 0.0,
    # Clip rewards to [-x, x] in the loss; 0 leaves them.
    'reward_clip': 0.0,
    # Multiplies (clipped) rewards in the loss.
    'reward_scale': 1.0,
    # Over a sequence's unroll_length transitions: 'sum' as SEED, or 'mean'.
    # Sequences are averaged by their importance weights either way.
    'reduction': 'sum',
    # Share of the largest |TD error| in a sequence's priority; the rest is
    # their mean.
    'priority_eta': 0.9,
    # Updates between copies of the parameters to the target network.
    'target_update_period': 2500,
    # Recurrent state that a sequence starts from: 'stored', the one that acting
    # had there, or 'zero', to compare.
    'initial_state': 'stored',
  })


def _exploration() -> ml_collections.ConfigDict:
  """Chances of random actions."""
  return ml_collections.ConfigDict({
    # The N training environments take random actions with chances of
    # epsilon_base ^ (1 + epsilon_alpha * i / (N - 1)), i from 0 to N - 1.
    'epsilon_base': 0.4,
    'epsilon_alpha': 7.0,
    # Of evaluation environments.
    'eval_epsilon': 1e-3,
  })
