"""Tests for launch/config_flag.py, as module and in programs."""

import pathlib
import re

import pytest

from seedrl_jax.configs import base
from seedrl_jax.envs import trust
from seedrl_jax.launch import config_flag
from seedrl_jax.runtime import settings
from tests import runs
from tests.configs import test_configs


@pytest.fixture(name='here', autouse=True)
def _here(tmp_path, monkeypatch) -> pathlib.Path:
  """Makes a current folder with two files."""
  monkeypatch.chdir(tmp_path)
  for name in ('mine.py', 'r2d2_base.py'):
    (tmp_path / name).write_text('')
  return tmp_path


_BENCHMARK = '--config=benchmark:pong_tiny'


@pytest.mark.parametrize('name', ['list', 'plot'])
def test_help_is_no_failure(name):
  result = runs.call(name, '--help')
  assert (result.returncode, result.stderr) == (0, '')


def test_help_has_flags_and_keys():
  result = runs.call('learner', '--help', _BENCHMARK)
  assert not result.returncode
  assert '  --config: ' in result.stdout
  assert '--config.env.id=Pong-v5\n' in result.stdout


def _describe(name, width=80):
  return config_flag.describe(test_configs.CONFIGS[name](), name, width)


@pytest.mark.parametrize(
  ('text', 'value'),
  [
    ('csv,mine:make', ('csv', 'mine:make')),
    ("('csv',)", ('csv',)),
    ('csv', ('csv',)),
  ],
)
def test_names_of_a_tuple_need_no_quotation_marks(text, value):
  flag = f'--config.log.writers={text}'
  assert config_flag.override(base.get_config(), [flag]).log.writers == value


@pytest.mark.parametrize('name', test_configs.CONFIGS)
def test_lists_every_key_with_its_default(name):
  text = _describe(name)
  assert max(map(len, text.splitlines())) <= 80
  values = settings.leaves(test_configs.CONFIGS[name](), base.ALLOWED)
  for key, value in values:
    (given,) = re.findall(
      rf'^  --config\.{re.escape(key)}[ =](.*)$', text, re.M
    )
    shown = '(not set)' if value is None else str(value).strip()
    assert given.strip('\'"') == shown.strip('\'"'), key


@pytest.mark.parametrize('agent', trust.AGENTS)
def test_every_key_and_section_has_a_sentence(agent):
  for key, entry in config_flag.key_table(agent).items():
    assert re.fullmatch(r"['A-Z].*[.)]", entry.help), key


def test_is_in_the_order_of_the_source_and_as_wide_as_wanted():
  text = _describe('r2d2_cartpole', width=50)
  keys = ['seed=', 'batch_size=', 'loss.n_steps=', 'env.id=', 'log.']
  places = [text.index(f'--config.{key}') for key in keys]
  assert places == sorted(places)
  assert '\n      Unrolls per update, over all training\n      dev' in text
  # The defaults are this file's, the comment is the nearest section's.
  assert '--config.loss.discount=0.995\n' in text
  assert 'loss: Q-learning over sequences' in text
  assert '--config.env.frame_skip (not set)\n' in text


def test_has_the_help_of_the_users_own_agent(here):
  (here / 'my_agent_of_help.py').write_text(
    'from seedrl_jax.runtime import keys, settings\n'
    "KEYS = {'mine': keys.Key(1, settings.integer(), 'Of mine.')}\n"
  )
  config = base.get_config()
  config.agent, config.mine, config.other = 'my_agent_of_help', 1, 2
  text = config_flag.describe(config, 'mine')
  assert '  --config.mine=1\n      Of mine.\n  --config.other=2\n' in text
