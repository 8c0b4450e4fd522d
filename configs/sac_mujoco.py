"""SAC on MuJoCo tasks, HalfCheetah-v5 by default.

Learning rates and an update of 256 transitions for each frame are those of
CleanRL and of rl_games on EnvPool, bounds of the deviation (e^-5 and e^2, by
tanh) CleanRL's, the rest is from arXiv 1812.05905. Not as in CleanRL:

* eight environments (1), 10,000 random frames (5,000);
* eight minibatches are drawn at once, and updates keep to one a frame within
  1,000 frames;
* the policy learns in each update, and critics, policy and temperature take
  their steps at once, as in the authors' code;
* initial weights are orthogonal, with gains of 0.01 for the policy's last layer
  and 1 for the critics' (uniform).
"""

import ml_collections

from seedrl_jax.agents.sac import keys as sac_keys
from seedrl_jax.configs import base


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration."""
  config = base.get_config(sac_keys.set_defaults)
  config.env.id = 'HalfCheetah-v5'
  config.env.num_envs = 8
  config.total_env_frames = 1_000_000
  # Single transitions; minibatches of 256.
  config.unroll_length = 1
  config.updates_per_call = 8
  config.batch_size = 8 * 256
  config.optimizer.learning_rate = 1e-3
  config.optimizer.policy_factor = 0.3
  config.replay.sampler = 'uniform'
  config.replay.max_size = 1_000_000
  config.replay.max_times_sampled = 0
  # One update of 256 transitions for each frame.
  config.replay.samples_per_insert = 256.0
  config.replay.min_size = 10_000
  return config
