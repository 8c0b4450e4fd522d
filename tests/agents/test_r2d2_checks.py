"""What the R2D2 agent refuses, in a sentence that names the flag."""

import re

import pytest

from configs import base as base_config
from seedrl_jax.agents import base
from tests.agents import r2d2_sequences


def _refusal(config):
  with pytest.raises(ValueError) as error:
    base.load_agent(config, r2d2_sequences.ENV_SPEC)
  return str(error.value)


@pytest.mark.parametrize(
  ('key', 'value', 'sentence'),
  [
    ('burn_in', -1, 'give at least 0.'),
    ('lookahead', -1, 'give at least 0.'),
    ('network.head_hidden_size', -1, 'give at least 0.'),
    ('loss.n_steps', 0, 'give at least 1.'),
    ('loss.discount', 1.5, 'give 0 to 1.'),
    ('loss.rescale_epsilon', float('nan'), 'give a number.'),
    ('loss.huber_delta', -0.5, 'give at least 0.'),
    ('loss.priority_eta', 1.5, 'give 0 to 1.'),
    ('loss.priority_eta', float('nan'), 'give 0 to 1.'),
    ('loss.target_update_period', 0, 'give at least 1.'),
    ('exploration.epsilon_base', 1.5, 'give 0 to 1.'),
    ('exploration.epsilon_alpha', -1.0, 'give at least 0.'),
    ('exploration.eval_epsilon', -0.1, 'give 0 to 1.'),
    ('loss.reduction', 'max', "choose one of ('sum', 'mean')."),
    ('loss.initial_state', 'learned', "choose one of ('stored', 'zero')."),
  ],
)
def test_refuses_a_value(key, value, sentence):
  config = r2d2_sequences.config(**{key: value})
  assert _refusal(config) == f'--config.{key}={value}: {sentence}'


def test_refuses_another_agents_key():
  config = r2d2_sequences.config()
  config.loss.entropy_cost = 0.01
  assert re.match(r'--config\.loss\.entropy_cost means', _refusal(config))


def test_refuses_another_agents_config():
  config = base_config.get_config()
  config.agent = 'r2d2'
  assert _refusal(config) == (
    '--config.agent=r2d2: R2D2 needs --config.burn_in; start from '
    'configs/r2d2_base.py.'
  )
