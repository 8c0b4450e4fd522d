"""The configuration keys of V-trace."""

import ml_collections

from seedrl_jax.agents import optimizer_config, reward_config
from seedrl_jax.runtime import keys
from seedrl_jax.runtime.keys import Key, Section, Table
from seedrl_jax.runtime.settings import number, one_of, optional

ACTIONS = ('discrete', 'multi_discrete', 'hybrid')

KEYS: Table = {
  'loss': Section('The loss of V-trace (arXiv 1802.01561, section 4).'),
  'loss.discount': Key(0.99, number(0, 1), 'The discount of a step.'),
  'loss.lambda_': Key(
    1.0, number(0, 1), 'Multiplies the traces c (remark 2 of the paper).'
  ),
  'loss.clip_rho': Key(
    1.0, number(0), 'Clips the importance ratios of the targets.'
  ),
  'loss.clip_c': Key(1.0, number(0), 'Clips the traces c.'),
  'loss.clip_pg_rho': Key(
    1.0, number(0), 'Clips the importance ratios of the policy gradient.'
  ),
  'loss.entropy_cost': Key(0.01, number(0), "Weight of the policy's entropy."),
  'loss.target_entropy': Key(
    None,
    optional(number(0)),
    'Entropy in nats to which the cost adapts. None keeps the cost fixed. A '
    'low cost has a small gradient, so `optimizer.epsilon` must be small, too.',
    float,
  ),
  'loss.entropy_cost_adjustment_speed': Key(
    10.0,
    # Divides the cost's logarithm.
    number(1e-6),
    'Speed of the adapting entropy cost.',
  ),
  'loss.baseline_cost': Key(
    0.5, number(0), 'Weight of half the squared error of the value.'
  ),
  'loss.kl_cost': Key(
    0.0, number(0), 'Weight of KL(acting policy, learner policy).'
  ),
  **reward_config.KEYS,
  **reward_config.POPART_KEYS,
  'loss.reduction': Key(
    'mean',
    one_of('mean', 'sum'),
    "'mean' is over the valid transitions of a batch. 'sum' is that mean × T "
    '× B, for the sum of the IMPALA paper.',
  ),
  **optimizer_config.KEYS,
}


def set_defaults(config: ml_collections.ConfigDict) -> None:
  """Makes a configuration one of V-trace."""
  config.agent = 'vtrace'
  keys.set_defaults(config, KEYS)
