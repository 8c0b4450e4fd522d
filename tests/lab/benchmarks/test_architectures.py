"""Tests the comparison of architectures on short runs."""

import pytest

from seedrl_jax.lab.benchmarks import architectures
from seedrl_jax.runtime import config_files

_TASKS = {'CartPole': architectures.Task({})}


@pytest.mark.parametrize('name', architectures.ARCHITECTURES)
def test_configurations_take_the_tasks(name):
  architecture = architectures.ARCHITECTURES[name]
  for task in architectures.TASKS.values():
    config = config_files.load(
      architecture.lander if task.is_lander else architecture.config
    )
    for key, value in {**architecture.values, **task.values}.items():
      config_files.set_key(config, key, value)


@pytest.mark.parametrize(
  ('name', 'moves'),
  [
    ('PAAC, A2C', False),
    pytest.param('A3C', True, marks=pytest.mark.slow),
    pytest.param('IMPALA', True, marks=pytest.mark.slow),
    pytest.param('R2D3', True, marks=pytest.mark.slow),
    pytest.param('SEED, V-trace', True, marks=pytest.mark.slow),
  ],
)
def test_a_row_has_the_figures_of_a_run(name, moves):
  row = architectures.measure(name, _TASKS, seconds=0.5, limit=1.0, cores=2)
  assert row['architecture'] == name
  assert int(row['CartPole, frames/s'].replace(',', '')) > 0
  assert (row['CartPole, B/frame'] != '0') == moves


def test_a_task_that_an_architecture_refuses_leaves_a_gap(capfd):
  tasks = {'Catch': architectures.Task({'env.id': 'Catch-v0'})}
  row = architectures.measure('Dyna-Q', tasks, 0.5, limit=1.0, cores=2)
  assert row['Catch, frames/s'] == '–'
  assert 'Dyna-Q on Catch: ' in capfd.readouterr().err


def test_a_run_that_fails_says_why():
  task = architectures.Task({'batch_size': 0})
  with pytest.raises(RuntimeError, match='batch_size=0'):
    architectures.run(
      architectures.ARCHITECTURES['PAAC, A2C'], task, limit=1.0, cores=2
    )


def test_the_target_ends_a_run():
  # More than the 22 of random actions, so there have been updates.
  task = architectures.Task({}, 50.0)
  figures = architectures.run(
    architectures.ARCHITECTURES['PAAC, A2C'], task, limit=600.0, cores=2
  )
  assert figures.seconds is not None and figures.lag == 0.0
