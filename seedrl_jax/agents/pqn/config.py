"""PQN's configuration keys: defaults and allowed values."""

import ml_collections

from seedrl_jax.agents import optimizer_config
from seedrl_jax.runtime import ranges
from seedrl_jax.runtime.settings import Allowed, integer, number

ACTIONS = ('discrete',)

RANGES: dict[str, Allowed] = {
  'epochs': integer(1, 10**4),
  'minibatches': integer(1, ranges.COUNT),
  'loss.discount': number(0, 1),
  'loss.lambda_': number(0, 1),
  'loss.reward_clip': number(0),
  'loss.reward_scale': number(),
  'exploration.initial_epsilon': number(0, 1),
  'exploration.final_epsilon': number(0, 1),
  # Divides the progress.
  'exploration.decay_share': number(1e-6, 1),
  'exploration.eval_epsilon': number(0, 1),
  **optimizer_config.RANGES,
}


def set_defaults(config: ml_collections.ConfigDict) -> None:
  """Makes a configuration one of PQN, with the paper's Atari settings."""
  config.agent = 'pqn'
  config.learner.max_lag = 1
  config.epochs = 2  # how often each batch is used
  config.minibatches = 32  # equal parts of a batch, of unrolls
  config.loss = _loss()
  config.exploration = _exploration()
  config.network.layer_norm = True
  optimizer_config.set_defaults(config)
  config.optimizer.name = 'radam'
  config.optimizer.learning_rate = 2.5e-4
  config.optimizer.schedule = 'constant'
  config.optimizer.clip_norm = 10.0


def _loss() -> ml_collections.ConfigDict:
  """Q(lambda) learning (arXiv 2407.04811, algorithm 1)."""
  return ml_collections.ConfigDict({
    'discount': 0.99,
    # Of the targets: 0 for one-step targets, 1 for Monte Carlo returns.
    'lambda_': 0.65,
    'reward_clip': 0.0,  # clip rewards to [-x, x] in the loss; 0 leaves them
    'reward_scale': 1.0,  # multiplies (clipped) rewards in the loss
  })


def _exploration() -> ml_collections.ConfigDict:
  """Epsilon-greedy exploration; all training environments have one epsilon."""
  return ml_collections.ConfigDict({
    # Probability of a random action, at first, and from decay_share of
    # total_env_frames on; linear in between.
    'initial_epsilon': 1.0,
    'final_epsilon': 1e-3,
    'decay_share': 0.1,
    'eval_epsilon': 0.0,  # of evaluation environments
  })
