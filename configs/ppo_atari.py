"""PPO on Atari with the settings of OpenAI's PPO2; Pong by default.

docs/agents/ppo.md lists the differences. Environments follow the protocol of
Machado et al. 2018. For two CPU cores take --config.network.torso=shallow.
"""

from seedrl_jax.agents.ppo import keys as ppo_keys
from seedrl_jax.configs import base


def get_config() -> base.Config:
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
