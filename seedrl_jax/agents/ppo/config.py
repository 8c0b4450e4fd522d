"""PPO's configuration keys: defaults and allowed values."""

import ml_collections

from seedrl_jax.agents import optimizer_config
from seedrl_jax.runtime import ranges
from seedrl_jax.runtime.settings import FLAG, Allowed, integer, number, one_of

ACTIONS = ('discrete', 'multi_discrete', 'continuous')

RANGES: dict[str, Allowed] = {
  'epochs': integer(1, 10**4),
  'minibatches': integer(1, ranges.COUNT),
  'loss.discount': number(0, 1),
  'loss.lambda_': number(0, 1),
  'loss.clip': number(0),
  'loss.value_clip': number(0),
  'loss.entropy_cost': number(0),
  'loss.baseline_cost': number(0),
  'loss.normalize_advantages': one_of('minibatch', 'batch', 'no'),
  'loss.target_kl': number(0),
  'normalization.observations': FLAG,
  'normalization.observation_clip': number(0),
  'normalization.rewards': FLAG,
  'normalization.reward_clip': number(0),
  'network.separate_baseline': FLAG,
  'network.free_deviation': FLAG,
  'network.first_deviation': number(1e-6),
  'network.min_deviation': number(0),
  **optimizer_config.RANGES,
}


def set_defaults(config: ml_collections.ConfigDict) -> None:
  """Makes a configuration one of PPO."""
  config.agent = 'ppo'
  config.learner.max_lag = 1
  config.epochs = 10  # how often each batch is used
  # Equal parts of a batch: of transitions or, if the network has an LSTM or
  # stacks frames, of unrolls.
  config.minibatches = 32
  config.loss = _loss()
  config.normalization = _normalization()
  # The baseline has a network of its own.
  config.network.separate_baseline = False
  # A Gaussian's deviations are the same in all states.
  config.network.free_deviation = True
  # Of a Gaussian; 1 is half the distance of an action's finite bounds.
  config.network.first_deviation = 1.0
  config.network.min_deviation = 1e-3
  optimizer_config.set_defaults(config)
  config.optimizer.learning_rate = 3e-4
  config.optimizer.epsilon = 1e-5
  config.optimizer.clip_norm = 0.5


def _loss() -> ml_collections.ConfigDict:
  """PPO (arXiv 1707.06347): clips and loss weights."""
  return ml_collections.ConfigDict({
    'discount': 0.99,
    'lambda_': 0.95,  # of generalised advantage estimation
    'clip': 0.2,  # of the ratio of probabilities, to [1 - x, 1 + x]
    'value_clip': 0.0,  # most that an update moves a value; 0: not clipped
    'entropy_cost': 0.0,
    'baseline_cost': 0.5,  # of half the squared error
    # To mean 0 and deviation 1: in each 'minibatch', in a 'batch', or 'no'.
    'normalize_advantages': 'minibatch',
    # The rest of a batch's minibatches is skipped once the policy is further
    # than this (in nats) from the one that acted; 0: never. Stable-Baselines3
    # stops at 1.5 times its `target_kl`.
    'target_kl': 0.0,
  })


def _normalization() -> ml_collections.ConfigDict:
  """Normalisation by running statistics of the training environments."""
  return ml_collections.ConfigDict({
    'observations': False,  # floating numbers to mean 0 and deviation 1
    'observation_clip': 10.0,  # normalised, to [-x, x]; 0: not clipped
    'rewards': False,  # divided by the deviation of discounted returns
    'reward_clip': 10.0,  # divided, to [-x, x]; 0: not clipped
  })
