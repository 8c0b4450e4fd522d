"""Tests for launch/config_flag.py: finding files, as module and in programs."""

import pathlib
import re
import shlex

import pytest

from launch import config_flag
from seedrl_jax.run import layout
from seedrl_jax.runtime import settings
from tests import runs
from tests.configs import test_configs

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
  assert config_flag.find(name) == path


@pytest.mark.parametrize(
  ('name', 'fix'),
  [
    ('vtrace_cartpol', 'the nearest is vtrace_cartpole.'),
    ('configs/r2d2_atary.py', 'the nearest is r2d2_atari.'),
    ('', 'take apex_atari, apex_cartpole, base, '),
    ('.', 'take apex_atari, apex_cartpole, base, '),
  ],
)
def test_says_what_is_there_instead(name, fix):
  with pytest.raises(ValueError, match=f'^there is no such file; {fix}'):
    config_flag.find(name)


_BENCHMARK = '--config=benchmark:pong_tiny'


@pytest.mark.parametrize(
  ('program', 'flags', 'sentence'),
  [
    ('record', [_BENCHMARK, '--config.sed=1'], '--config.sed: the config'),
    ('reverb_server', [_BENCHMARK, '--config.seed=x'], '--config.seed=x: inv'),
    ('train', ['--config.env.options.x=1'], '--config.env.options.x: give all'),
  ],
)
def test_programs_refuse_in_a_sentence(program, flags, sentence):
  assert runs.refusal(program, *flags).startswith(f'{program}: {sentence}')


def test_help_has_flags_and_keys():
  result = runs.call('learner', '--help', _BENCHMARK)
  assert '  --config: ' in result.stdout
  assert '--config.env.id=Pong-v5\n' in result.stdout


@pytest.mark.parametrize('name', test_configs.CONFIGS)
def test_lists_every_key_with_its_default(name):
  config = test_configs.CONFIGS[name]()
  text = '\n'.join(config_flag.describe(config))
  for key, value in settings.leaves(config, layout.RANGES):
    (given,) = re.findall(
      rf'^  --config\.{re.escape(key)}[ =](.*)$', text, re.M
    )
    value = dict(value) if hasattr(value, 'items') else value
    shown = '(not set)' if value is None else shlex.quote(str(value))
    assert given == shown, key
