"""Tests for launch/list.py, and `seedrl --version`."""

import pytest

import seedrl_jax
from seedrl_jax.envs import trust
from seedrl_jax.runtime import config_files
from tests import runs


def _rows(*arguments):
  result = runs.call('list', *arguments)
  assert result.returncode == 0, result.stderr
  return [line.split(maxsplit=1) for line in result.stdout.splitlines()]


def test_all_configurations_have_a_description():
  rows = _rows('configs')
  assert [name for name, _ in rows] == config_files.names()


def test_agents_have_configurations():
  rows = dict(_rows('agents'))
  assert tuple(rows) == trust.AGENTS
  assert 'ppo_lunarlander' in rows['ppo'].split(', ')


@pytest.mark.parametrize(
  ('pattern', 'names'),
  [
    ('PONG-v?', {'Pong-v5'}),
    ('cartpole-v1', {'CartPole-v1', 'gymnasium:CartPole-v1'}),
  ],
)
def test_environments_of_all_libraries(pattern, names):
  found = {row[0] for row in _rows('envs', pattern)}
  assert names <= found and len(found) < 10


def test_version():
  result = runs.call('main', '--version')
  assert result.stdout == f'seedrl-jax {seedrl_jax.__version__}\n'
