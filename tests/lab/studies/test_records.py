"""Tests for seedrl_jax/lab/studies/records.py."""

import json
import pathlib

import pytest

from seedrl_jax.lab.studies import records, results
from seedrl_jax.launch import config_flag
from tests.lab.studies import study_runs

_EMPTY = records.Record(*[''] * len(records.Record._fields))


def _update(folder: pathlib.Path, path: pathlib.Path) -> list[records.Record]:
  runs = results.gather([str(folder)])
  records.update(path, runs, config_flag.shipped())
  return records.read(path)


def _evaluate(folder: pathlib.Path, **returns: list[float]) -> None:
  lines = [json.dumps({'actions': a, 'returns': r}) for a, r in returns.items()]
  (folder / 'evaluations.jsonl').write_text('\n'.join(lines))


def test_a_run_is_added_and_then_replaced(tmp_path):
  path = tmp_path / 'results.csv'
  other = _EMPTY._replace(agent='sac')
  records.write(path, [other])
  run = study_runs.write(tmp_path / 'run', [1.0], seed=3, batch_size=8)
  _evaluate(run, greedy=[11.0, 13.0], sampled=[0.5])
  first, record = _update(run, path)
  assert first == other
  flags = '--config.batch_size=8 --config.total_env_frames=1000'
  assert record[:5] == ('vtrace', 'Catch-v0', 'vtrace_catch', flags, '3')
  assert record[5:14] == (
    *('1', '', '1000', '12.0', '1.0', '0.50', '', '2 greedy', '60'),
  )
  versions = json.loads((run / 'versions.jsonl').read_text())
  assert record.commit == versions['commit']
  # A run does not know these.
  mine = {'reference': '1', 'protocol': 'x', 'readme': 'Catch', 'remarks': 'y'}
  records.write(path, [record._replace(**mine), other])
  _evaluate(run, greedy=[2.0])
  assert _update(run, path) == [
    record._replace(
      return_='2.00', error='', sampled='', episodes='1 greedy', **mine
    ),
    other,
  ]


@pytest.mark.parametrize('evaluation', [{}, {'sampled': [1.0]}])
def test_a_run_without_a_greedy_evaluation_is_an_error(tmp_path, evaluation):
  path = tmp_path / 'results.csv'
  records.write(path, [_EMPTY])
  run = study_runs.write(tmp_path / 'run', [1.0])
  _evaluate(run, **evaluation)
  with pytest.raises(ValueError, match=r'run `seedrl evaluate .*/run --epi'):
    _update(run, path)
  assert records.read(path) == [_EMPTY]


@pytest.mark.parametrize('text', ['', 'a,b\n', 'agent\nx,y\n'])
def test_another_file_is_refused(tmp_path, text):
  path = tmp_path / 'results.csv'
  path.write_text(text)
  with pytest.raises(ValueError, match='is damaged, or no file of results'):
    records.read(path)
