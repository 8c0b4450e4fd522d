"""Tests the table and the estimates of concurrent systems."""

import csv
import math

import pytest

from seedrl_jax.runtime import workdir
from seedrl_jax.studies import concurrent, sweeping
from tests.studies import study_runs


def _row(workers, frames=100.0, seconds=50.0, solved=2, system='A3C'):
  cpu = workers * 5.0 * frames / 100
  own = concurrent.Row(system, workers, 2, solved, frames, 10.0, seconds, cpu)
  return own._replace(updates=200.0, staleness=0.5)


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


def test_rows_are_medians_of_the_runs_that_reached_the_target(tmp_path):
  def trial(seed, last, target=2.0):
    path = study_runs.write(tmp_path / str(seed), [0.5, last], seed=seed)
    folder = workdir.Workdir(path)
    config = folder.read_config()
    config.target_return = target
    return sweeping.Trial(folder, config, 'train', [])

  runs = [('A', 2, trial(seed, last)) for seed, last in enumerate([2, 1, 3])]
  (row,) = concurrent.gather(runs)
  assert (row.system, row.workers, row.runs, row.solved) == ('A', 2, 3, 2)
  assert (row.frames, row.seconds) == (1000.0, 120.0)
  (none,) = concurrent.gather([('A', 1, trial(7, 0.0))])
  assert none.solved == 0 and math.isnan(none.frames)


def test_report_has_tables_figure_and_rows(tmp_path):
  rows = [
    _row(1),
    _row(2, seconds=20.0),
    _row(1, solved=0, system='Dyna-Q'),
    _row(1, seconds=60.0, system='DQN with Hogwild!'),
    _row(2, seconds=15.0, system='DQN with a lock'),
  ]
  concurrent.write(rows, tmp_path)
  text = (tmp_path / 'study.md').read_text()
  assert '| A3C | 2 | 2 of 2 | 100 | 10 | 20 s | 10 s |' in text
  assert '| 2.50 |' in text
  # One worker is the same with a lock and without.
  assert '| 4.00 |' in text
  assert '4 cores' in text
  assert (tmp_path / 'study.png').stat().st_size > 1000
  with (tmp_path / 'study.csv').open() as file:
    assert len(list(csv.DictReader(file))) == len(rows)
