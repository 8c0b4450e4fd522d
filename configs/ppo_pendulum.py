"""PPO on Pendulum-v1: seconds on two CPU cores.

Start from here for your own task with few continuous actions. Settings of
Stable-Baselines3's zoo (10 epochs, minibatches of 64 transitions, its value
cost). Differences:

* 200,000 frames (100,000);
* 16 environments (4) and unrolls of 64 steps (1,024): batches of 1,024
  transitions (4,096);
* discount 0.95 (0.9) and ReLU (tanh): with the zoo's, policies need more
  swings;
* noise in each step, not state-dependent exploration;
* observations and rewards are normalised;
* actions are scaled so that their bounds are -1 and 1, not -2 and 2, and the
  learning rate is half the zoo's 1e-3;
* it decays to 0 (constant); acting and training overlap.
"""

from seedrl_jax.agents.ppo import keys as ppo_keys
from seedrl_jax.configs import base


def get_config() -> base.Config:
  config = base.get_config(ppo_keys.set_defaults)
  config.total_env_frames = config.optimizer.decay_frames = 200_000
  config.env.id = 'Pendulum-v1'
  config.env.num_envs = 16
  config.unroll_length = 64
  config.batch_size = 16
  config.epochs, config.minibatches = 10, 16
  config.network.activation = 'relu'
  config.network.separate_baseline = True
  config.loss.discount = 0.95
  config.loss.baseline_cost = 1.0
  config.normalization.observations = True
  config.normalization.rewards = True
  config.optimizer.learning_rate = 5e-4
  return config
