"""The keys of the PPO toy agent."""

import ml_collections

from seedrl_jax.agents import optimizer_config
from seedrl_jax.runtime.settings import Allowed, integer, number

RANGES: dict[str, Allowed] = {
  'loss.discount': number(0, 1),
  'loss.clip': number(0),
  'epochs': integer(1),
  'minibatches': integer(1),
  **optimizer_config.RANGES,
}


def set_defaults(config: ml_collections.ConfigDict) -> None:
  """Makes a configuration one of this agent."""
  config.agent = 'tests.agents.epochs'
  config.loss = ml_collections.ConfigDict({'discount': 0.5, 'clip': 0.2})
  # Over each batch, in this many equal parts.
  config.epochs, config.minibatches = 3, 2
  optimizer_config.set_defaults(config)
