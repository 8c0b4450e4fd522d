"""The keys of the continuous toy agent."""

import ml_collections

from seedrl_jax.runtime.settings import Allowed, number

RANGES: dict[str, Allowed] = {
  'loss.discount': number(0, 1),
  'actor.learning_rate': number(0),
  'critic.learning_rate': number(0),
  'exploration.first': number(0),
  'exploration.last': number(0),
}


def set_defaults(config: ml_collections.ConfigDict) -> None:
  """Makes a configuration one of this agent."""
  config.agent = 'tests.agents.continuous'
  config.update({
    'loss': {'discount': 0.5},
    'actor': {'learning_rate': 0.01},
    'critic': {'learning_rate': 0.03},
    # Standard deviation of the actions at the run's start and end.
    'exploration': {'first': 0.5, 'last': 0.1},
  })
