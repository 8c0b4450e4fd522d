"""DQN on Atari as in Nature (Mnih et al. 2015); Pong by default.

R2D2's agent without memory, double Q-learning, dueling and priorities, with the
paper's settings, and RMSProp's epsilon as in DQN Zoo. Environment conventions
are the paper's: no sticky actions, the minimal action set, clipped rewards, up
to 30 no-ops, no FIRE at a reset, at most 108,000 frames, and a lost life sets
the discount to 0. docs/agents/r2d2.md lists the differences.
"""

from seedrl_jax.configs import apex_atari, base


def get_config() -> base.Config:
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
