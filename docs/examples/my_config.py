"""A configuration with the environment, network and agent of this folder."""

import ml_collections

from seedrl_jax.agents import optimizer_config
from seedrl_jax.configs import base


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration."""
  config = base.get_config(_set_agent)
  config.env.factory = 'my_env:make'
  config.env.factory_kwargs = ml_collections.ConfigDict({'length': 20})
  config.env.num_envs = 16
  config.network.torso = 'my_torso:make'
  config.unroll_length, config.batch_size = 10, 16
  config.total_env_frames = 60_000
  return config


def _set_agent(config: ml_collections.ConfigDict) -> None:
  config.agent = 'my_agent'
  # Acting and training alternate, as the loss corrects nothing.
  config.learner.max_lag = 0
  config.loss = ml_collections.ConfigDict({
    'discount': 0.9,
    'entropy_cost': 0.01,
  })
  optimizer_config.set_defaults(config)
