"""Tests for seedrl_jax/runtime/config_files.py."""

import pathlib
import subprocess
import sys

import pytest

from seedrl_jax.runtime import config_files
from tests import runs

_CONFIGS = runs.ROOT / 'configs'


@pytest.fixture(name='here', autouse=True)
def _here(tmp_path, monkeypatch) -> pathlib.Path:
  """Makes a current folder with two files."""
  monkeypatch.chdir(tmp_path)
  for name in ('mine.py', 'r2d2_base.py'):
    (tmp_path / name).write_text('')
  return tmp_path


@pytest.mark.parametrize(
  ('name', 'path'),
  [
    ('vtrace_cartpole', _CONFIGS / 'vtrace_cartpole.py'),
    ('vtrace_cartpole.py', _CONFIGS / 'vtrace_cartpole.py'),
    (str(_CONFIGS / 'base'), _CONFIGS / 'base.py'),
    ('mine', pathlib.Path('mine.py')),
    ('r2d2_base.py', pathlib.Path('r2d2_base.py')),
  ],
)
def test_finds_a_file_here_or_among_those_that_come_along(name, path):
  assert config_files.find(name) == path


@pytest.mark.parametrize(
  ('name', 'fix'),
  [
    ('vtrace_cartpol', 'the nearest is vtrace_cartpole.'),
    ('configs/r2d2_atary.py', 'the nearest is r2d2_atari.'),
    ('', 'take a2c_atari, a2c_cartpole, a3c_cartpole, '),
    ('.', 'take a2c_atari, a2c_cartpole, a3c_cartpole, '),
  ],
)
def test_says_what_is_there_instead(name, fix):
  with pytest.raises(ValueError, match=f'^there is no configuration .*; {fix}'):
    config_files.find(name)


def test_loads_by_name_and_by_path(here):
  (here / 'mine.py').write_text(
    'from seedrl_jax.configs import r2d2_base\n'
    'def get_config():\n'
    '  config = r2d2_base.get_config()\n'
    '  config.batch_size = 7\n'
    '  return config\n'
  )
  assert config_files.load('mine').batch_size == 7
  by_path = config_files.load(str(_CONFIGS / 'ppo_cartpole.py'))
  assert by_path == config_files.load('ppo_cartpole')
  assert by_path.is_locked


@pytest.mark.parametrize(
  ('name', 'sentence'),
  [
    (
      'ppo_cartpol',
      '^there is no configuration ppo_cartpol; the nearest is ppo_c',
    ),
    ('mine', r'^mine: the module mine .*mine\.py\) has no function get_config'),
  ],
)
def test_says_why_a_configuration_cannot_be_loaded(name, sentence):
  with pytest.raises(ValueError, match=sentence):
    config_files.load(name)


def test_sets_keys():
  config = config_files.load('ppo_mujoco')
  config_files.set_key(config, 'env.id', 'Ant-v5')
  config_files.set_key(config, 'seed', 3)
  # An integer is a number, and None becomes whatever the key takes.
  config_files.set_key(config, 'optimizer.learning_rate', 1)
  config_files.set_key(config, 'replay.max_size', 10)
  assert (config.env.id, config.seed) == ('Ant-v5', 3)
  assert config.optimizer.learning_rate == 1.0 and config.replay.max_size == 10


@pytest.mark.parametrize(
  ('key', 'value', 'sentence'),
  [
    (
      'env.idd',
      'x',
      '^env.idd: the configuration has no such key; .* env.id.$',
    ),
    ('sed', 1, '^sed: the configuration has no such key; .* seed.$'),
    ('seed.deeper', 1, '^seed.deeper: the configuration has no such key'),
    ('seed', 'one', "^seed='one': .*[Tt]ype"),
    (
      'network.torso',
      print,
      r"^network.torso=<.*>: .* as 'module:function'\.$",
    ),
  ],
)
def test_refuses_keys_and_values(key, value, sentence):
  config = config_files.load('ppo_mujoco')
  with pytest.raises(ValueError, match=sentence):
    config_files.set_key(config, key, value)


def test_needs_no_jax():
  code = (
    'import sys\n'
    'from seedrl_jax.runtime import config_files\n'
    "config_files.load('r2d2_atari')\n"
    "sys.exit('jax' in sys.modules)\n"
  )
  subprocess.run([sys.executable, '-c', code], cwd=runs.ROOT, check=True)
