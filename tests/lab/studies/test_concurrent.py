"""Tests the table and the estimates of concurrent systems."""

import math

import pytest

from seedrl_jax.lab.studies import concurrent, sweeping
from seedrl_jax.runtime import config_files, workdir
from tests.lab.studies import study_runs


def _row(workers, frames=100.0, seconds=50.0, solved=2, system='A3C'):
  cpu = workers * 5.0 * frames / 100
  figures = (frames, 10.0, seconds, cpu, 200.0, 0.5)
  median = concurrent.Run(system, workers, 0, True, *figures)
  return concurrent.Row(system, workers, 2, solved, median)


def test_steps_are_larger_where_workers_share_one_update():
  def rate(system, workers):
    spec = concurrent.SYSTEMS[system]
    file = config_files.load(spec.config)
    values = spec.values_with(workers, file)
    return values.get('optimizer.learning_rate')

  assert rate('Synchronous DQN', 4) == pytest.approx(
    4 * rate('Synchronous DQN', 1)
  )
  assert rate('DQN with a lock', 4) is None


def test_estimates_give_each_worker_a_core():
  rows = [_row(1), _row(2, frames=120.0), _row(4, frames=160.0)]
  # A frame takes 0.05 s.
  assert concurrent.estimates(rows, 'A3C') == pytest.approx({
    4: 2.0,
    8: 1.0,
    16: 0.5,
    32: 0.25,
  })
  assert concurrent.estimates(rows, 'DQN') == {}
  assert concurrent.estimates([_row(1)], 'A3C') == {}
  assert concurrent.estimates([_row(1, solved=0), _row(2)], 'A3C') == {}


def _run(workers, seed=1, seconds=50.0, solved=True, system='A3C', frames=1e2):
  return concurrent.Run(
    system, workers, seed, solved, frames, 10.0, seconds, 5.0, 200.0, 0.5
  )


def test_a_run_is_measured_and_solved_if_it_reached_the_target(tmp_path):
  def measure(last, target=2.0):
    path = study_runs.write(tmp_path / str(last), [0.5, last])
    folder = workdir.Workdir(path)
    config = folder.read_config()
    config.target_return = target
    trial = sweeping.Trial(folder, config, 'train', [])
    return concurrent.measure('A3C', 2, 7, trial)

  assert measure(2.0) == ('A3C', 2, 7, True, 1000, 0, 120, 0, 2, 0)
  assert not measure(1.0).solved


def test_rows_are_medians_of_the_runs_that_reached_the_target():
  (none, row) = concurrent.medians([
    _run(2, frames=300.0),
    _run(2, 2, frames=900.0, solved=False),
    _run(2, 3, frames=100.0),
    _run(1, solved=False),
  ])
  assert (row.system, row.workers, row.runs, row.solved) == ('A3C', 2, 3, 2)
  assert (row.median.frames, row.median.seconds) == (200.0, 50.0)
  assert none.solved == 0 and math.isnan(none.median.frames)


def test_report_has_tables_figure_and_runs(tmp_path):
  all_runs = [
    _run(1, system='DQN with Hogwild!', seconds=60.0),
    _run(2, system='DQN with a lock', seconds=15.0),
    _run(1),
    _run(2, seconds=20.0),
    _run(1, solved=False, system='Dyna-Q'),
  ]
  concurrent.write(all_runs, tmp_path)
  text = (tmp_path / 'study.md').read_text()
  assert '| A3C | 2 | 1 of 1 | 100 | 10 | 20 s | 5 s |' in text
  assert '| 2.50 |' in text
  # One worker is the same with a lock and without.
  assert '| 4.00 |' in text
  assert '4 cores' in text
  assert (tmp_path / 'study.png').stat().st_size > 1000
  assert concurrent.read(str(tmp_path / 'study.csv')) == all_runs


def test_other_files_are_no_study(tmp_path):
  path = tmp_path / 'metrics.csv'
  path.write_text('time/updates\n1\n')
  with pytest.raises(ValueError, match='is not a study'):
    concurrent.read(str(path))
  head = ','.join(concurrent.Run._fields)
  for row in ('A3C,2', 'x,1,1,True,1,1,1,1,1,1', 'A3C,x,1,True,1,1,1,1,1,1'):
    path.write_text(f'{head}\n{row}\n')
    with pytest.raises(ValueError, match='is damaged in line 2'):
      concurrent.read(str(path))
