"""R2D2 with the settings of SEED RL's Atari runs, on CartPole-v1.

The other R2D2 configs start from it.
"""

from seedrl_jax.agents.r2d2 import keys as r2d2_keys
from seedrl_jax.configs import base


def get_config() -> base.Config:
  config = base.get_config(r2d2_keys.set_defaults)
  # A sequence has burn_in + unroll_length + lookahead + 1 steps; unroll_length
  # transitions are trained, and the next sequence begins unroll_length steps
  # later. The R2D2 paper has 80, SEED 100.
  config.unroll_length = 100
  config.batch_size = 64
  config.network.lstm_size = 512
  config.network.use_previous_action = True
  # As in SEED's R2D2; its V-trace agents clip.
  config.network.previous_reward_clip = 0.0
  config.replay.sampler = 'prioritized'
  # Sequences.
  config.replay.max_size = 100_000
  config.replay.max_times_sampled = 0
  config.replay.samples_per_insert = 1.5
  # Sequences before the first update.
  config.replay.min_size = 5_000
  config.replay.importance_exponent = 0.6
  return config
