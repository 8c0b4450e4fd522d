"""The configuration keys of PPO."""

import ml_collections

from seedrl_jax.agents import optimizer_config, reward_config
from seedrl_jax.runtime import keys
from seedrl_jax.runtime.keys import Key, Section, Table
from seedrl_jax.runtime.settings import COUNT, FLAG, integer, number, one_of

ACTIONS = ('discrete', 'multi_discrete', 'continuous', 'hybrid')

KEYS: Table = {
  'epochs': Key(10, integer(1, 10**4), 'Number of passes over each batch.'),
  'minibatches': Key(
    32,
    integer(1, COUNT),
    'Number of equal parts of a batch: of single transitions, or of whole '
    'unrolls if the network has an LSTM or stacks frames.',
  ),
  'loss': Section('The loss of PPO (arXiv 1707.06347).'),
  'loss.discount': Key(0.99, number(0, 1), 'The discount of a step.'),
  'loss.lambda_': Key(
    0.95, number(0, 1), 'Lambda of generalised advantage estimation.'
  ),
  'loss.clip': Key(
    0.2, number(0), 'Clips the ratio of probabilities to [1 - x, 1 + x].'
  ),
  'loss.value_clip': Key(
    0.0, number(0), 'Maximum change of a value by an update. 0 means no limit.'
  ),
  'loss.entropy_cost': Key(0.0, number(0), "Weight of the policy's entropy."),
  'loss.baseline_cost': Key(
    0.5, number(0), 'Weight of half the squared error of the value.'
  ),
  'loss.normalize_advantages': Key(
    'minibatch',
    one_of('minibatch', 'batch', 'no'),
    'Normalises advantages to mean 0 and standard deviation 1: in each '
    "'minibatch', in the whole 'batch', or not at all ('no').",
  ),
  'loss.target_kl': Key(
    0.0,
    number(0),
    'Skips the other minibatches of a batch when the KL divergence from the '
    'acting policy exceeds this number of nats. 0 never skips. '
    'Stable-Baselines3 stops at 1.5 times its `target_kl`.',
  ),
  'normalization': Section(
    'Normalisation by running statistics of the training environments.'
  ),
  'normalization.observations': Key(
    False,
    FLAG,
    'Normalises floating-point observations to mean 0 and standard deviation '
    '1.',
  ),
  'normalization.observation_clip': Key(
    10.0,
    number(0),
    'Clips normalised observations to [-x, x]. 0 means no clipping.',
  ),
  'normalization.rewards': Key(
    False,
    FLAG,
    'Divides rewards by the standard deviation of discounted returns.',
  ),
  'normalization.reward_clip': Key(
    10.0, number(0), 'Clips normalised rewards to [-x, x]. 0 means no clipping.'
  ),
  **reward_config.POPART_KEYS,
  'network.separate_baseline': Key(
    False, FLAG, 'Gives the baseline its own network.'
  ),
  'network.free_deviation': Key(
    True,
    FLAG,
    "Makes a Gaussian policy's standard deviations parameters, not outputs "
    'of the network.',
  ),
  'network.first_deviation': Key(
    1.0,
    number(1e-6),
    'Initial standard deviation of a Gaussian policy. 1 is half the distance '
    "between an action's bounds, if they are finite.",
  ),
  'network.min_deviation': Key(
    1e-3,
    number(0),
    'Minimum standard deviation of a Gaussian policy, in the same unit.',
  ),
  **optimizer_config.KEYS,
}


def set_defaults(config: ml_collections.ConfigDict) -> None:
  """Makes a configuration one of PPO."""
  config.agent = 'ppo'
  config.learner.max_lag = 1
  keys.set_defaults(config, KEYS)
  config.optimizer.learning_rate = 3e-4
  config.optimizer.epsilon = 1e-5
  config.optimizer.clip_norm = 0.5
