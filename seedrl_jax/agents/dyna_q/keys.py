"""The configuration keys of Deep Dyna-Q."""

import ml_collections

from seedrl_jax.agents.r2d2 import keys as r2d2_keys
from seedrl_jax.runtime import keys
from seedrl_jax.runtime.keys import Key, Section, Table
from seedrl_jax.runtime.settings import UNITS, each, integer, number, one_of

ACTIONS = ('discrete',)

_PLANNING: Table = {
  'model': Section('The world model, which predicts the results of actions.'),
  'model.observation_size': Key(
    64, integer(1, UNITS), 'Units for the observation in the first layer.'
  ),
  'model.action_size': Key(
    1, integer(1, UNITS), 'Units for the action in the first layer.'
  ),
  'model.hidden_sizes': Key(
    (65, 65), each(integer(1, UNITS)), 'Units of each layer after the first.'
  ),
  'model.reward_scale': Key(
    1.0,
    # 0 would hide the rewards.
    number(1e-9),
    "Multiplies rewards in the model's loss. Without it, errors of large "
    'rewards would hide those of the observation.',
  ),
  'planning': Section('Q-learning on transitions that the model imagines.'),
  'planning.ratio': Key(
    1.0,
    number(0, 10**4),
    'Imagined transitions for each real one of a batch, rounded to whole '
    'rollouts, at least one. 0 means DQN without a model.',
  ),
  'planning.rollout_length': Key(
    3, integer(1, 1000), 'Steps of a rollout, unless its episode ends earlier.'
  ),
  'planning.start_states': Key(
    'uniform',
    one_of('uniform', 'prioritized'),
    "How rollouts choose their first observation in the batch: 'uniform', or "
    "'prioritized' by the absolute TD error of the transition.",
  ),
  'planning.actions': Key(
    'random',
    one_of('random', 'epsilon_greedy'),
    "How rollouts choose actions: at random, or 'epsilon_greedy' like the "
    'training environments.',
  ),
  'planning.start_frames': Key(
    0,
    integer(0),
    'Frames before imagined transitions count. The model learns from the first '
    'update on.',
  ),
  'planning.learning_rate_scale': Key(
    1.0,
    number(0),
    'Multiplies the loss of imagined transitions. With 1 they count as much '
    'as real ones. With SGD this scales their learning rate; optimisers that '
    "divide by the gradient's size, such as Adam, only weight them.",
  ),
  'planning.role': Key(
    'both',
    one_of('both', 'act', 'model'),
    "What is trained: 'act', the values on real transitions; 'model', the "
    "model, and the values on imagined transitions; or 'both'.",
  ),
}
KEYS: Table = {**r2d2_keys.KEYS, **_PLANNING}


def set_defaults(config: ml_collections.ConfigDict) -> None:
  """Makes a configuration one of Dyna-Q: DQN's settings, and planning."""
  r2d2_keys.set_defaults(config)
  config.unroll_length = 1
  config.burn_in = 0
  config.network.dueling = False
  config.network.head_hidden_size = 0
  config.loss.n_steps = 1
  config.loss.discount = 0.99
  config.loss.double_q = False
  config.loss.rescale_epsilon = -1.0
  config.exploration.schedule = 'linear'
  add_planning(config)


def add_planning(config: ml_collections.ConfigDict) -> None:
  """Makes a configuration of DQN one of Dyna-Q."""
  config.agent = 'dyna_q'
  keys.set_defaults(config, _PLANNING)
  # A sequence then has rollout_length transitions, on which the error of a
  # rollout of the model is measured.
  config.lookahead = config.planning.rollout_length - 1
