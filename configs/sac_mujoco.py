"""SAC on MuJoCo tasks, HalfCheetah-v5 by default.

Settings are those of CleanRL, of rl_games on EnvPool and of arXiv 1812.05905;
docs/agents/sac.md says which, and lists the differences.
"""

from seedrl_jax.agents.sac import keys as sac_keys
from seedrl_jax.configs import base


def get_config() -> base.Config:
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
