"""Tests for launch/list.py, and `seedrl --version`."""

import pytest

import seedrl_jax
from seedrl_jax.envs import trust
from seedrl_jax.launch import list as list_program
from seedrl_jax.runtime import config_files
from tests import runs


@pytest.fixture(name='rows_of')
def rows_of_fixture(capsys, monkeypatch):
  """Returns a function that calls the program in this process."""
  monkeypatch.setenv('JAX_PLATFORMS', 'cpu')

  def rows_of(*arguments):
    list_program.main(['list', *arguments])
    lines = capsys.readouterr().out.splitlines()
    return [line.split(maxsplit=1) for line in lines]

  return rows_of


def test_all_configurations_have_a_description(rows_of):
  assert [name for name, _ in rows_of('configs')] == config_files.names()


def test_agents_have_configurations(rows_of):
  rows = dict(rows_of('agents'))
  assert tuple(rows) == trust.AGENTS
  assert 'ppo_lunarlander' in rows['ppo'].split(', ')


@pytest.mark.parametrize(
  ('pattern', 'names'),
  [
    ('PONG-v?', {'Pong-v5'}),
    ('cartpole-v1', {'CartPole-v1', 'gymnasium:CartPole-v1'}),
  ],
)
def test_environments_of_all_libraries(pattern, names, rows_of):
  actual = {row[0] for row in rows_of('envs', pattern)}
  assert names <= actual and len(actual) < 10


def test_version():
  result = runs.call('main', '--version')
  assert result.stdout == f'seedrl-jax {seedrl_jax.__version__}\n'
