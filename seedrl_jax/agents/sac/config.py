"""SAC's configuration keys: defaults and allowed values."""

import ml_collections
from ml_collections import config_dict

from seedrl_jax.agents import optimizer_config
from seedrl_jax.runtime.settings import (
  FLAG,
  Allowed,
  integer,
  number,
  one_of,
  optional,
)

ACTIONS = ('continuous',)

RANGES: dict[str, Allowed] = {
  'updates_per_call': integer(1, 10**4),
  'loss.discount': number(0, 1),
  'loss.reward_scale': number(),
  # Its logarithm is a parameter.
  'loss.temperature': number(1e-6),
  'loss.adapt_temperature': FLAG,
  'loss.target_entropy': optional(number()),
  'loss.target_update_rate': number(0, 1),
  'optimizer.policy_factor': number(0),
  **optimizer_config.RANGES,
  # It has no priorities.
  'replay.sampler': one_of('uniform', 'fifo'),
}


def set_defaults(config: ml_collections.ConfigDict) -> None:
  """Makes a configuration one of SAC, with the settings of arXiv 1812.05905."""
  config.agent = 'sac'
  config.network.hidden_sizes = (256, 256)  # of the policy and of each critic
  # A batch has this many equal parts, each for one update, all made in one
  # call: small networks would wait for calls. batch_size counts them all.
  config.updates_per_call = 1
  config.loss = _loss()
  optimizer_config.set_defaults(config)
  # Of critics and temperature.
  config.optimizer.learning_rate = 3e-4
  config.optimizer.policy_factor = 1.0  # times that is the policy's
  config.optimizer.schedule = 'constant'
  config.optimizer.clip_norm = 0.0


def _loss() -> ml_collections.ConfigDict:
  """Soft Q-learning and policy improvement (arXiv 1812.05905)."""
  return ml_collections.ConfigDict({
    'discount': 0.99,
    'reward_scale': 1.0,  # multiplies rewards in the loss
    'temperature': 1.0,  # weight of the entropy; only the first if it adapts
    # Raises the temperature while the entropy is below its target, and lowers
    # it above.
    'adapt_temperature': True,
    # In nats, of actions scaled to [-1, 1]. None: minus the number of an
    # action's components.
    'target_entropy': config_dict.placeholder(float),
    # Share of the new critics in the target critics after each update.
    'target_update_rate': 0.005,
  })
