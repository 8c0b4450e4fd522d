"""PQN on Atari with the authors' settings; Pong by default.

The settings are those of purejaxql, the code of arXiv 2407.04811;
docs/agents/pqn.md lists the differences. Environments follow the protocol of
Machado et al. 2018. For two CPU cores take --config.network.torso=shallow.
"""

from seedrl_jax.agents.pqn import keys as pqn_keys
from seedrl_jax.configs import base


def get_config() -> base.Config:
  config = base.get_config(pqn_keys.set_defaults)
  config.total_env_frames = 40_000_000
  base.set_atari_protocol(config)
  config.env.num_envs = 128
  config.network.torso = 'nature'
  config.unroll_length = 32
  config.batch_size = 128
  return config
