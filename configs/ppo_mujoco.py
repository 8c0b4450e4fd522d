"""PPO on MuJoCo tasks of EnvPool; HalfCheetah-v5 by default.

As CleanRL's `ppo_continuous_action.py`: network, losses, optimiser and
normalisation. It differs (in brackets: CleanRL):

* 64 environments (1) with unrolls of 32 steps (2,048): batches of 2,048
  transitions, as there;
* actions are scaled so that their bounds are -1 and 1 (not scaled);
* the deviation of actions starts at 0.4 (1), with which runs learn more
  reliably, and has a floor of 1e-3;
* a truncated episode bootstraps from the value of its last observation (ends);
* running statistics change once a batch (each step);
* acting and training overlap (`learner.max_lag`);
* version 5 of the tasks (4), and 4 million frames, over which the learning rate
  decays (1 million).
"""

import ml_collections

from seedrl_jax.agents.ppo import keys as ppo_keys
from seedrl_jax.configs import base


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration."""
  config = base.get_config(ppo_keys.set_defaults)
  config.total_env_frames = config.optimizer.decay_frames = 4_000_000
  config.env.id = 'HalfCheetah-v5'
  config.env.num_envs = 64
  config.unroll_length = 32
  config.batch_size = 64
  config.epochs, config.minibatches = 10, 32
  config.network.activation = 'tanh'
  config.network.separate_baseline = True
  config.network.first_deviation = 0.4
  config.loss.value_clip = 0.2
  config.normalization.observations = True
  config.normalization.rewards = True
  return config
