"""The keys of the PPO toy agent."""

import ml_collections

from seedrl_jax.agents import optimizer_config
from seedrl_jax.runtime import keys
from seedrl_jax.runtime.keys import Key, Section
from seedrl_jax.runtime.settings import integer, number

KEYS: keys.Table = {
  'loss': Section('A clipped policy gradient.'),
  'loss.discount': Key(0.5, number(0, 1), 'The discount of a step.'),
  'loss.clip': Key(0.2, number(0), 'Clips the ratio of probabilities.'),
  'epochs': Key(3, integer(1), 'Number of passes over each batch.'),
  'minibatches': Key(2, integer(1), 'Number of equal parts of a batch.'),
  **optimizer_config.KEYS,
}


def set_defaults(config: ml_collections.ConfigDict) -> None:
  """Makes a configuration one of this agent."""
  config.agent = 'tests.agents.epochs'
  keys.set_defaults(config, KEYS)
