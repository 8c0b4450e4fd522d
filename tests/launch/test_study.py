"""Tests for launch/study.py as a program, with runs that are known."""

from seedrl_jax.lab.studies import concurrent
from tests import runs


def _known(folder, seeds):
  known_runs = [
    concurrent.Run('A3C', 1, seed, True, 9e5, 2e3, 100.0, 99.0, 1e4, 0.0)
    for seed in range(1, seeds + 1)
  ]
  concurrent.write(known_runs, folder)
  return str(folder / 'study.csv')


def test_known_runs_count_and_are_not_repeated(tmp_path):
  known = _known(tmp_path / 'old', seeds=2)
  result = runs.call(
    'study',
    f'--workdir={tmp_path}/new',
    f'--known={known}',
    *('--systems=A3C', '--workers=1', '--seeds=2'),
  )
  assert (result.returncode, result.stderr) == (0, '')
  report = tmp_path / 'new/report'
  assert concurrent.read(str(report / 'study.csv')) == concurrent.read(known)
  assert '| A3C | 1 | 2 of 2 | 900,000 |' in (report / 'study.md').read_text()
