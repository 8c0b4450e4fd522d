"""Tests for seedrl_jax/lab/studies/commands.py and `config_flag.override`."""

import shlex

import ml_collections
import pytest

from seedrl_jax.configs import base, r2d2_base, vtrace_catch
from seedrl_jax.lab.studies import commands
from seedrl_jax.launch import config_flag
from tests import runs

_VALUES = {
  'seed': 7,
  'optimizer.learning_rate': 3e-4,
  'network.hidden_sizes': (8,),
  'env.max_episode_steps': 9,
  'env.drop_observations': ('a b', "c'"),
  'env.options': ml_collections.ConfigDict({'x': [1, 2]}),
}


def test_flags_make_the_configuration_again():
  config = vtrace_catch.get_config()
  runs.set_keys(config, **_VALUES)
  flags = commands.flags(base.get_config(), config)
  assert '--config.env.id=Catch-v0' in flags
  again = config_flag.override(base.get_config(), flags)
  assert not list(commands.changes(config, again))
  assert not commands.flags(again, config)


def test_the_shortest_command_is_taken():
  known = config_flag.shipped()
  config = vtrace_catch.get_config()
  config.seed = 3
  command = commands.shortest(config, known, 'a b')
  assert command is not None
  assert shlex.split(command)[1:] == [
    *('train', '--config=vtrace_catch', '--config.seed=3'),
    '--workdir=a b',
  ]


@pytest.mark.parametrize('base_config', [base, r2d2_base])
def test_what_flags_cannot_say_has_no_command(base_config):
  config = vtrace_catch.get_config()
  config.env.max_episode_steps = 5
  known = {'other': config}
  wanted = base_config.get_config()
  assert commands.shortest(wanted, known, 'w') is None


@pytest.mark.parametrize(
  ('key', 'value'), [('factory', 'my:maze'), ('tasks', ('a', 'b'))]
)
def test_the_id_of_these_environments_is_only_a_name(key, value):
  config, named = base.get_config(), base.get_config()
  config.env[key] = named.env[key] = value
  named.env.id = 'Maze'
  assert not commands.flags(config, named)


def test_a_key_that_an_earlier_release_lacked_has_its_default():
  old, new = base.get_config(), base.get_config()
  with old.unlocked():
    del old.env.tasks
  assert not commands.flags(new, old)
  new.env.tasks = ('a', 'b')
  assert commands.flags(new, old) == ['--config.env.tasks=()']


@pytest.mark.parametrize(
  ('flag', 'sentence'),
  [
    ('--config.sed=1', 'the nearest is --config.seed.'),
    ('--config.seed=x', '--config.seed=x: '),
  ],
)
def test_wrong_overrides_exit_in_a_sentence(flag, sentence):
  with pytest.raises(SystemExit, match=sentence):
    config_flag.override(vtrace_catch.get_config(), [flag])
