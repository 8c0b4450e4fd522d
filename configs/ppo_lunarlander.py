"""PPO on LunarLander-v2: a minute on two CPU cores.

Settings of Stable-Baselines3's zoo: discount 0.999, lambda 0.98, entropy cost
0.01, 4 epochs, minibatches of 64 transitions, its value cost. Differences:

* 32 environments (16) and unrolls of 128 steps (1,024): batches of 4,096
  transitions (16,384);
* observations and rewards are normalised, and the learning rate of 3e-4 decays;
* acting and training overlap.
"""

from seedrl_jax.agents.ppo import keys as ppo_keys
from seedrl_jax.configs import base


def get_config() -> base.Config:
  config = base.get_config(ppo_keys.set_defaults)
  config.total_env_frames = config.optimizer.decay_frames = 1_000_000
  config.env.id = 'LunarLander-v2'
  config.env.num_envs = 32
  config.unroll_length = 128
  config.batch_size = 32
  config.epochs, config.minibatches = 4, 64
  config.network.activation = 'tanh'
  config.network.separate_baseline = True
  config.loss.discount = 0.999
  config.loss.lambda_ = 0.98
  config.loss.entropy_cost = 0.01
  config.loss.baseline_cost = 1.0
  config.normalization.observations = True
  config.normalization.rewards = True
  return config
