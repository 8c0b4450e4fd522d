"""R2D2's configuration keys: defaults and allowed values."""

import ml_collections

from seedrl_jax.agents import optimizer_config
from seedrl_jax.runtime import ranges
from seedrl_jax.runtime.settings import FLAG, Allowed, integer, number, one_of

ACTIONS = ('discrete',)

RANGES: dict[str, Allowed] = {
  'burn_in': integer(0, ranges.STEPS),
  'lookahead': integer(0, ranges.STEPS),
  'network.dueling': FLAG,
  'network.head_hidden_size': integer(0, ranges.UNITS),
  'loss.discount': number(0, 1),
  'loss.n_steps': integer(1, 1000),
  'loss.double_q': FLAG,
  'loss.rescale_epsilon': number(),
  'loss.huber_delta': number(0),
  'loss.reward_clip': number(0),
  'loss.reward_scale': number(),
  'loss.reduction': one_of('sum', 'mean'),
  'loss.priority_eta': number(0, 1),
  'loss.target_update_period': integer(1, ranges.LARGE),
  # 0 would be no update.
  'loss.target_update_rate': number(1e-9, 1),
  'loss.initial_state': one_of('stored', 'zero'),
  'exploration.schedule': one_of('ladder', 'linear'),
  'exploration.epsilon_base': number(0, 1),
  'exploration.epsilon_alpha': number(0),
  'exploration.initial_epsilon': number(0, 1),
  'exploration.final_epsilon': number(0, 1),
  'exploration.decay_frames': integer(1),
  'exploration.eval_epsilon': number(0, 1),
  **optimizer_config.RANGES,
}


def set_defaults(config: ml_collections.ConfigDict) -> None:
  """Makes a configuration one of R2D2, with SEED RL's settings."""
  config.agent = 'r2d2'
  # Steps before the trained ones that warm up both networks' recurrent state
  # from the stored one, without gradient.
  config.burn_in = 40
  # Steps after the trained ones, for the rewards of the last targets. With
  # loss.n_steps - 1 all targets have n rewards; single transitions
  # (unroll_length 1) need this. With 0, as published, the last targets
  # bootstrap from the last step with fewer rewards.
  config.lookahead = 0
  config.loss = _loss()
  config.exploration = _exploration()
  # Separate value and advantage streams, or one.
  config.network.dueling = True
  # Hidden units of each stream. 0: linear.
  config.network.head_hidden_size = 512
  optimizer_config.set_defaults(config)
  config.optimizer.learning_rate = 4.8e-4
  config.optimizer.epsilon = 1e-3
  config.optimizer.schedule = 'constant'


def _loss() -> ml_collections.ConfigDict:
  """Q-learning over sequences (Kapturowski et al., ICLR 2019)."""
  return ml_collections.ConfigDict({
    'discount': 0.997,
    'n_steps': 5,  # rewards of a target before it bootstraps
    # The online network chooses the action that the target network evaluates;
    # False: the target network does both.
    'double_q': True,
    # Linear part of the value rescaling h; negative: no rescaling.
    'rescale_epsilon': 1e-3,
    # TD error beyond which the loss is linear; 0: squared everywhere.
    'huber_delta': 0.0,
    'reward_clip': 0.0,  # clip rewards to [-x, x] in the loss; 0 leaves them
    'reward_scale': 1.0,  # multiplies (clipped) rewards in the loss
    # 'mean' over a batch's valid transitions, with their sequences' importance
    # weights, or 'sum': that mean x unroll_length, a sequence's sum as in SEED.
    'reduction': 'sum',
    # Weight of the largest |TD error| in a sequence's priority; the mean has
    # the rest.
    'priority_eta': 0.9,
    # Updates between those of the target network, which then takes so much of
    # the parameters: 1 copies them.
    'target_update_period': 2500,
    'target_update_rate': 1.0,
    # Recurrent state at a sequence's start: 'stored' by acting, or 'zero', for
    # comparison.
    'initial_state': 'stored',
  })


def _exploration() -> ml_collections.ConfigDict:
  """Epsilon-greedy exploration."""
  return ml_collections.ConfigDict({
    # Probability of a random action: 'ladder' gives each training environment
    # its own; 'linear' gives all the same, which decays.
    'schedule': 'ladder',
    # Ladder: environment i of N has epsilon_base ^ (1 + epsilon_alpha * i / (N
    # - 1)).
    'epsilon_base': 0.4,
    'epsilon_alpha': 7.0,
    # Linear: from the initial to the final epsilon in the first decay_frames of
    # the run; the initial one until the first update.
    'initial_epsilon': 1.0,
    'final_epsilon': 0.1,
    'decay_frames': 4_000_000,
    'eval_epsilon': 1e-3,  # of evaluation environments
  })
