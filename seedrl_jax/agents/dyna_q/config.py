"""Deep Dyna-Q's configuration keys: defaults and allowed values."""

import ml_collections

from seedrl_jax.agents.r2d2 import config as r2d2_config
from seedrl_jax.runtime import ranges
from seedrl_jax.runtime.settings import Allowed, each, integer, number, one_of

ACTIONS = ('discrete',)

RANGES: dict[str, Allowed] = {
  **r2d2_config.RANGES,
  'model.observation_size': integer(1, ranges.UNITS),
  'model.action_size': integer(1, ranges.UNITS),
  'model.hidden_sizes': each(integer(1, ranges.UNITS)),
  # 0 would hide the rewards.
  'model.reward_scale': number(1e-9),
  'planning.ratio': number(0, 10**4),
  'planning.rollout_length': integer(1, 1000),
  'planning.start_states': one_of('uniform', 'prioritized'),
  'planning.actions': one_of('random', 'epsilon_greedy'),
  'planning.start_frames': integer(0),
  'planning.learning_rate_scale': number(0),
  'planning.role': one_of('both', 'act', 'model'),
}


def set_defaults(config: ml_collections.ConfigDict) -> None:
  """Makes a configuration one of Dyna-Q: DQN's settings, and planning."""
  r2d2_config.set_defaults(config)
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
  config.model = _model()
  config.planning = _planning()
  # A sequence then has rollout_length transitions, on which the model's error
  # after so many steps is measured.
  config.lookahead = config.planning.rollout_length - 1


def _model() -> ml_collections.ConfigDict:
  """The world model, which predicts what an action leads to."""
  return ml_collections.ConfigDict({
    # Units for the observation and for the action, side by side.
    'observation_size': 64,
    'action_size': 1,
    'hidden_sizes': (65, 65),  # of the layers after them
    # Multiplies rewards in the model's loss. Errors of large rewards would else
    # hide those of the observation.
    'reward_scale': 1.0,
  })


def _planning() -> ml_collections.ConfigDict:
  """Q-learning on transitions that the model imagines."""
  return ml_collections.ConfigDict({
    # Imagined transitions for each real one of a batch, rounded to whole
    # rollouts, at least one. 0: DQN without a model.
    'ratio': 1.0,
    # Steps of a rollout, unless it ends before.
    'rollout_length': 3,
    # Observations of the batch that rollouts start from: 'uniform', or
    # 'prioritized' by the transition's absolute TD error.
    'start_states': 'uniform',
    # 'random', or 'epsilon_greedy' as the training environments act.
    'actions': 'random',
    # Frames before the first rollout counts; the model learns from the first
    # update on.
    'start_frames': 0,
    # Multiplies the loss of imagined transitions, which otherwise count as much
    # as real ones. With SGD it is a learning rate of their own; Adam and other
    # optimisers that divide by the gradient's size only weight them.
    'learning_rate_scale': 1.0,
    # What is trained: 'both'; 'act', the values on real transitions; 'model',
    # the model, and the values on imagined ones.
    'role': 'both',
  })
