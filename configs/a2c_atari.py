"""A2C on Atari: the V-trace agent, kept on policy, on short unrolls.

Pong by default.

With on-policy data and a lambda of 1, V-trace's targets are the n-step returns
of A2C (arXiv 1802.01561, equation 2), with n the unroll's length. Settings are
those of OpenAI's A2C, which the PPO paper (arXiv 1707.06347) reports: Nature's
network, 16 environments, 5 steps, RMSProp at 7e-4 that decays to 0 in 40
million frames, norm clip 0.5, entropy cost 0.01, clipped rewards, FIRE at a
reset. Stable-Baselines3's (RL Baselines3 Zoo) are the same, except for a
constant learning rate. Differences (in brackets: OpenAI's A2C):

* environments follow the protocol of Machado et al. 2018: sticky actions
  (none), 18 actions (the minimal set), one no-op (up to 30), and a lost life
  has no effect on episode or discount (sets the discount to 0);
* normalised pixels as in `vtrace_atari` (divided by 255);
* frames before an episode are zero (copies of its first);
* 2 more environments for evaluation, which act greedily.
"""

import ml_collections

from seedrl_jax.configs import vtrace_atari


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration."""
  config = vtrace_atari.get_config()
  config.env.num_envs = 16
  config.unroll_length = 5
  config.batch_size = 16
  config.network.torso = 'nature'
  config.loss.lambda_ = 1.0
  config.loss.entropy_cost = 0.01
  config.optimizer.name = 'rmsprop'
  config.optimizer.learning_rate = 7e-4
  config.optimizer.warmup_frames = 0
  # As TensorFlow's.
  config.optimizer.epsilon_inside_root = True
  config.optimizer.rmsprop_initial_scale = 1.0
  # Acting and training alternate: the data are on-policy.
  config.learner.max_lag = 0
  return config
