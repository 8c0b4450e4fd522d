"""The configuration keys of R2D2."""

import ml_collections

from seedrl_jax.agents import optimizer_config, reward_config
from seedrl_jax.runtime import keys
from seedrl_jax.runtime.keys import Key, Section, Table
from seedrl_jax.runtime.settings import (
  FLAG,
  LARGE,
  STEPS,
  UNITS,
  integer,
  number,
  one_of,
)

ACTIONS = ('discrete',)

KEYS: Table = {
  'burn_in': Key(
    40,
    integer(0, STEPS),
    'Steps before the trained ones. They warm up the recurrent state of both '
    'networks from the stored one, without a gradient.',
  ),
  'lookahead': Key(
    0,
    integer(0, STEPS),
    'Steps after the trained ones, for the rewards of the last targets. With '
    '`loss.n_steps` - 1 all targets have n rewards; single transitions '
    '(`unroll_length` 1) need this. With 0, as published, the last targets '
    'bootstrap from the last step with fewer rewards.',
  ),
  'loss': Section('Q-learning over sequences (Kapturowski et al., ICLR 2019).'),
  'loss.discount': Key(0.997, number(0, 1), 'The discount of a step.'),
  'loss.n_steps': Key(
    5, integer(1, 1000), 'Rewards of a target before it bootstraps.'
  ),
  'loss.double_q': Key(
    True,
    FLAG,
    'The online network chooses the action that the target network '
    'evaluates. If False, the target network does both.',
  ),
  'loss.rescale_epsilon': Key(
    1e-3,
    number(),
    'Linear part of the value rescaling h. A negative number turns rescaling '
    'off.',
  ),
  'loss.huber_delta': Key(
    0.0,
    number(0),
    'TD error beyond which the loss is linear. 0 means that it is squared '
    'everywhere.',
  ),
  **reward_config.KEYS,
  'loss.reduction': Key(
    'sum',
    one_of('sum', 'mean'),
    "'mean' is over the valid transitions of a batch, with the importance "
    "weights of their sequences. 'sum' is that mean × `unroll_length`: the "
    'sum over a sequence, as in SEED RL.',
  ),
  'loss.priority_eta': Key(
    0.9,
    number(0, 1),
    "Weight of the largest |TD error| in a sequence's priority. The mean has "
    'the rest.',
  ),
  'loss.target_update_period': Key(
    2500,
    integer(1, LARGE),
    'Updates between two updates of the target network.',
  ),
  'loss.target_update_rate': Key(
    1.0,
    # 0 would be no update.
    number(1e-9, 1),
    'Share of the new parameters in the target network after its update. 1 '
    'copies them.',
  ),
  'loss.initial_state': Key(
    'stored',
    one_of('stored', 'zero'),
    "Recurrent state at the start of a sequence: 'stored' by acting, or "
    "'zero', for comparison.",
  ),
  'exploration': Section('Epsilon-greedy exploration.'),
  'exploration.schedule': Key(
    'ladder',
    one_of('ladder', 'linear'),
    "'ladder' gives each training environment its own epsilon, the "
    "probability of a random action. 'linear' gives all the same, which "
    'decays.',
  ),
  'exploration.epsilon_base': Key(
    0.4,
    number(0, 1),
    'Ladder: environment i of N has epsilon_base ^ (1 + epsilon_alpha * i / '
    '(N - 1)).',
  ),
  'exploration.epsilon_alpha': Key(
    7.0, number(0), 'Ladder: see `epsilon_base`.'
  ),
  'exploration.initial_epsilon': Key(
    1.0, number(0, 1), 'Linear: epsilon until the first update.'
  ),
  'exploration.final_epsilon': Key(
    0.1, number(0, 1), 'Linear: epsilon after `decay_frames`.'
  ),
  'exploration.decay_frames': Key(
    4_000_000,
    integer(1),
    'Linear: frames from the start of the run to `final_epsilon`.',
  ),
  'exploration.eval_epsilon': Key(
    1e-3, number(0, 1), 'Epsilon of evaluation environments.'
  ),
  'network.dueling': Key(
    True, FLAG, 'Separates the streams of value and advantage.'
  ),
  'network.head_hidden_size': Key(
    512, integer(0, UNITS), 'Hidden units of each stream. 0 makes them linear.'
  ),
  **optimizer_config.KEYS,
}


def set_defaults(config: ml_collections.ConfigDict) -> None:
  """Makes a configuration one of R2D2, with the settings of SEED RL."""
  config.agent = 'r2d2'
  keys.set_defaults(config, KEYS)
  config.optimizer.learning_rate = 4.8e-4
  config.optimizer.epsilon = 1e-3
  config.optimizer.schedule = 'constant'
