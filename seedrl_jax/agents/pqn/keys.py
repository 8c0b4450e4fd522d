"""The configuration keys of PQN."""

import ml_collections

from seedrl_jax.agents import optimizer_config, reward_config
from seedrl_jax.runtime import keys
from seedrl_jax.runtime.keys import Key, Section, Table
from seedrl_jax.runtime.settings import COUNT, integer, number

ACTIONS = ('discrete',)

KEYS: Table = {
  'epochs': Key(2, integer(1, 10**4), 'Number of passes over each batch.'),
  'minibatches': Key(
    32, integer(1, COUNT), 'Number of equal parts of a batch, of whole unrolls.'
  ),
  'loss': Section('Q(lambda) learning (arXiv 2407.04811, algorithm 1).'),
  'loss.discount': Key(0.99, number(0, 1), 'The discount of a step.'),
  'loss.lambda_': Key(
    0.65,
    number(0, 1),
    'Lambda of the targets: 0 for one-step targets, 1 for Monte Carlo returns.',
  ),
  **reward_config.KEYS,
  'exploration': Section(
    'Epsilon-greedy exploration, with one epsilon for all training '
    'environments.'
  ),
  'exploration.initial_epsilon': Key(
    1.0, number(0, 1), 'Probability of a random action at the start.'
  ),
  'exploration.final_epsilon': Key(
    1e-3, number(0, 1), 'Probability of a random action after the decay.'
  ),
  'exploration.decay_share': Key(
    0.1,
    # Divides the progress.
    number(1e-6, 1),
    'Share of `total_env_frames` over which epsilon decays linearly.',
  ),
  'exploration.eval_epsilon': Key(
    0.0, number(0, 1), 'Epsilon of evaluation environments.'
  ),
  **optimizer_config.KEYS,
}


def set_defaults(config: ml_collections.ConfigDict) -> None:
  """Makes a configuration one of PQN, with the paper's Atari settings."""
  config.agent = 'pqn'
  config.learner.max_lag = 1
  keys.set_defaults(config, KEYS)
  config.network.layer_norm = True
  config.optimizer.name = 'radam'
  config.optimizer.learning_rate = 2.5e-4
  config.optimizer.schedule = 'constant'
  config.optimizer.clip_norm = 10.0
