"""Tests for docs/add_results.py."""

import csv
import json
import pathlib
import runpy
import shutil

import pytest

from seedrl_jax.lab.studies import results
from tests.docs import pages
from tests.lab.studies import study_runs

_add = runpy.run_path(str(pages.DOCS / 'add_results.py'))['add']


@pytest.fixture(name='path')
def path_fixture(tmp_path):
  """Returns a file of results with one row."""
  path = tmp_path / 'results.csv'
  shutil.copy(pages.DOCS / 'results.csv', path)
  path.write_text(''.join(path.read_text().splitlines(keepends=True)[:2]))
  return path


def _rows(path: pathlib.Path) -> list[dict[str, str]]:
  with path.open() as file:
    return list(csv.DictReader(file))


def _evaluate(folder: pathlib.Path, **returns: list[float]) -> None:
  lines = [json.dumps({'actions': a, 'returns': r}) for a, r in returns.items()]
  (folder / 'evaluations.jsonl').write_text('\n'.join(lines))


def test_a_run_is_added_and_then_replaced(tmp_path, path):
  (other,) = _rows(path)
  run = study_runs.write(tmp_path / 'run', [1.0], seed=3, batch_size=8)
  _evaluate(run, greedy=[11.0, 13.0], sampled=[0.5])
  _add(results.gather([str(run)]), path)
  first, row = _rows(path)
  assert first == other
  versions = json.loads((run / 'versions.jsonl').read_text())
  assert {name: value for name, value in row.items() if value} == {
    'agent': 'vtrace',
    'environment': 'Catch-v0',
    'config': 'vtrace_catch',
    'flags': '--config.batch_size=8 --config.total_env_frames=1000',
    'seed': '3',
    'seeds': '1',
    'frames': '1000',
    'return': '12.0',
    'error': '1.0',
    'sampled': '0.50',
    'episodes': '2 greedy',
    'seconds': '60',
    'commit': versions['commit'],
  }
  # A run does not know these.
  path.write_text(path.read_text().replace(f'{row["commit"]},,', 'x,Catch,'))
  _evaluate(run, greedy=[2.0])
  _add(results.gather([str(run)]), path)
  _, row = _rows(path)
  assert [row['return'], row['error'], row['readme']] == ['2.00', '', 'Catch']


@pytest.mark.parametrize('evaluation', [{}, {'sampled': [1.0]}])
def test_a_run_without_a_greedy_evaluation_is_an_error(
  tmp_path, path, evaluation
):
  text = path.read_text()
  run = study_runs.write(tmp_path / 'run', [1.0])
  _evaluate(run, **evaluation)
  with pytest.raises(ValueError, match=r'run `seedrl evaluate .*/run --epi'):
    _add(results.gather([str(run)]), path)
  assert path.read_text() == text
