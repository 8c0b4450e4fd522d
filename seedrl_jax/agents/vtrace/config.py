"""V-trace's configuration keys: defaults and allowed values."""

import ml_collections
from ml_collections import config_dict

from seedrl_jax.agents import optimizer_config
from seedrl_jax.runtime.settings import Allowed, number, one_of, optional

ACTIONS = ('discrete',)

RANGES: dict[str, Allowed] = {
  'loss.discount': number(0, 1),
  'loss.lambda_': number(0, 1),
  'loss.clip_rho': number(0),
  'loss.clip_c': number(0),
  'loss.clip_pg_rho': number(0),
  'loss.entropy_cost': number(0),
  'loss.target_entropy': optional(number(0)),
  # Divides the cost's logarithm.
  'loss.entropy_cost_adjustment_speed': number(1e-6),
  'loss.baseline_cost': number(0),
  'loss.kl_cost': number(0),
  'loss.reward_clip': number(0),
  'loss.reward_scale': number(),
  'loss.reduction': one_of('mean', 'sum'),
  **optimizer_config.RANGES,
}


def set_defaults(config: ml_collections.ConfigDict) -> None:
  """Makes a configuration one of V-trace."""
  config.agent = 'vtrace'
  config.loss = _loss()
  optimizer_config.set_defaults(config)


def _loss() -> ml_collections.ConfigDict:
  """V-trace (arXiv 1802.01561, section 4): clips and loss weights."""
  return ml_collections.ConfigDict({
    'discount': 0.99,
    'lambda_': 1.0,
    'clip_rho': 1.0,
    'clip_c': 1.0,
    'clip_pg_rho': 1.0,
    'entropy_cost': 0.01,
    # Entropy (nats) that the cost adapts to; None: a fixed cost. A low cost has
    # a small gradient: keep optimizer.epsilon small, too.
    'target_entropy': config_dict.placeholder(float),
    'entropy_cost_adjustment_speed': 10.0,
    'baseline_cost': 0.5,
    'kl_cost': 0.0,
    'reward_clip': 0.0,  # clip rewards to [-x, x] in the loss; 0 leaves them
    # Multiplies (clipped) rewards in the loss. Aim for returns of a few units;
    # reports are in the environment's units.
    'reward_scale': 1.0,
    # 'mean' over a batch's valid transitions, or 'sum': that mean x T x B, for
    # the sum of the IMPALA paper.
    'reduction': 'mean',
  })
