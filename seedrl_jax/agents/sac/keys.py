"""The configuration keys of SAC."""

import ml_collections

from seedrl_jax.agents import optimizer_config
from seedrl_jax.runtime import keys
from seedrl_jax.runtime.keys import Key, Section, Table
from seedrl_jax.runtime.settings import FLAG, integer, number, one_of, optional

ACTIONS = ('continuous',)

KEYS: Table = {
  'updates_per_call': Key(
    1,
    integer(1, 10**4),
    'Number of updates in one call, each on an equal part of a batch; '
    '`batch_size` is their total. Small networks would otherwise wait for '
    'calls.',
  ),
  'loss': Section('Soft Q-learning and policy improvement (arXiv 1812.05905).'),
  'loss.discount': Key(0.99, number(0, 1), 'The discount of a step.'),
  'loss.reward_scale': Key(1.0, number(), 'Multiplies rewards in the loss.'),
  'loss.temperature': Key(
    1.0,
    # Its logarithm is a parameter.
    number(1e-6),
    'Weight of the entropy; the initial one if it adapts.',
  ),
  'loss.adapt_temperature': Key(
    True,
    FLAG,
    'Raises the temperature while the entropy is below its target, and '
    'lowers it above.',
  ),
  'loss.target_entropy': Key(
    None,
    optional(number()),
    'Target entropy in nats, of actions scaled to [-1, 1]. None means minus '
    "the number of an action's components.",
    float,
  ),
  'loss.target_update_rate': Key(
    0.005,
    number(0, 1),
    'Share of the new critics in the target critics after each update.',
  ),
  **optimizer_config.KEYS,
  'optimizer.policy_factor': Key(
    1.0,
    number(0),
    'The learning rate of the policy as a multiple of `learning_rate`, which '
    'is that of the critics and the temperature.',
  ),
  'replay.sampler': Key(
    'fifo',
    one_of('uniform', 'fifo'),
    "'uniform' is a replay; 'fifo' is a queue. SAC has no priorities.",
  ),
}


def set_defaults(config: ml_collections.ConfigDict) -> None:
  """Makes a configuration one of SAC, with the settings of arXiv 1812.05905."""
  config.agent = 'sac'
  # Of the policy and of each critic.
  config.network.hidden_sizes = (256, 256)
  keys.set_defaults(config, KEYS)
  config.optimizer.learning_rate = 3e-4
  config.optimizer.schedule = 'constant'
  config.optimizer.clip_norm = 0.0
