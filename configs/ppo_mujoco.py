"""PPO on MuJoCo tasks of EnvPool; HalfCheetah-v5 by default.

As CleanRL's `ppo_continuous_action.py`: network, losses, optimiser and
normalisation. docs/agents/ppo.md lists the differences.
"""

from seedrl_jax.agents.ppo import keys as ppo_keys
from seedrl_jax.configs import base


def get_config() -> base.Config:
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
