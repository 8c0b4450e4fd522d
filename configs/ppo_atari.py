"""PPO on Atari with the settings of OpenAI's PPO2; Pong by default.

The source is openai/baselines at commit ea25b9e: `atari()` in
baselines/ppo2/defaults.py and the defaults of ppo2.py. 4 epochs of 4
minibatches, ratios and values clipped at 0.1, discount 0.99, lambda 0.95, a
value cost of 0.5 of half the square, entropy cost 0.01, gradients clipped at
norm 0.5, Adam at 2.5e-4 with epsilon 1e-5, which decays over 40 million frames,
Nature's network, clipped rewards, zeros before an episode in the stack of
frames. Differences (in brackets: PPO2 with 8 environments):

* environments follow the protocol of Machado et al. 2018: sticky actions
  (none), 18 actions (the minimal set), one no-op (up to 30), and a lost life
  has no effect on episode or discount (ends the episode);
* 64 environments with unrolls of 32 steps (8 with 128), and batches of 32
  unrolls: 1,024 transitions, as there;
* acting may be three batches ahead of training;
* a minibatch is of eight unrolls (256 single steps);
* 4 more environments for evaluation, which act greedily.

For two CPU cores take --config.network.torso=shallow.
"""

import ml_collections

from seedrl_jax.agents.ppo import keys as ppo_keys
from seedrl_jax.configs import base


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration."""
  config = base.get_config(ppo_keys.set_defaults)
  config.total_env_frames = config.optimizer.decay_frames = 40_000_000
  config.num_eval_envs = 4
  base.set_atari_protocol(config)
  config.env.num_envs = 64
  config.network.torso = 'nature'
  config.unroll_length = 32
  config.batch_size = 32
  # The environments begin the unrolls of two batches at once.
  config.learner.max_lag = 3
  config.epochs, config.minibatches = 4, 4
  config.loss.clip = config.loss.value_clip = 0.1
  config.loss.entropy_cost = 0.01
  config.optimizer.learning_rate = 2.5e-4
  return config
