"""Tests for studies/report.py and figures.py, but not for looks."""

import csv
import json

import numpy as np
import pytest

from seedrl_jax.lab.studies import figures, report, results
from seedrl_jax.launch import config_flag
from tests.lab.studies import study_runs

_FILES = {
  *('report.md', 'scores.csv', 'profiles.png', 'frames.png', 'wall_clock.png')
}


def _write(folder, out='report') -> str:
  report.write([str(folder)], folder / out, config_flag.shipped())
  return (folder / out / 'report.md').read_text()


@pytest.fixture(name='folder', scope='module')
def _folder(tmp_path_factory):
  """Reports on two algorithms on two games, and a run that failed."""
  tmp_path = tmp_path_factory.mktemp('runs')
  for rate, final in [(0.1, 3.0), (0.2, 7.0)]:
    for task in ('Pong-v5', 'Boxing-v5'):
      for seed in range(4):
        study_runs.write(
          tmp_path / f'{rate},{task},{seed}',
          [0.0, final + seed],
          seed=seed,
          env__id=task,
          optimizer__learning_rate=rate,
        )
        entries = [
          {'actions': 'greedy', 'returns': returns}
          for returns in ([99.0], [seed + 4.0, seed + 5.0])
        ]
        text = '\n'.join(map(json.dumps, entries))
        path = tmp_path / f'{rate},{task},{seed}/evaluations.jsonl'
        path.write_text(text)
  failed = tmp_path / 'failed'
  study_runs.write(failed, [1.0], 'failed: x', env__id='Pong-v5')
  path = failed / 'versions.jsonl'
  newest = {**json.loads(path.read_text()), 'jax': '9.9'}
  path.write_text(path.read_text() + json.dumps(newest) + '\n')
  _write(tmp_path)
  return tmp_path


@pytest.fixture(name='text')
def _text(folder) -> str:
  return (folder / 'report/report.md').read_text()


def test_report_has_tables_and_says_what_is_left_out(folder, text):
  assert {path.name for path in (folder / 'report').iterdir()} == _FILES
  assert 'Runs: 17, of them finished: 16. Algorithms: 2. Tasks: 2.' in text
  assert 'No curve' not in text
  assert f'* `{folder}/failed`: failed: x, 1,000 of 1,000 frames' in text
  assert '**Few seeds:** some results are of 4.' in text
  assert 'final evaluation return: the mean of the last 20' in text
  rows = [
    line.split(' | ') for line in text.splitlines() if 'rate=0.1 ' in line
  ]
  # Scores are 4, 5, 6, 7 on both.
  assert [row[2:6] for row in rows[:2]] == [['auto', '1000', '2 min', '4']] * 2
  for cell in rows[0][6:9]:
    assert cell.startswith('5.500 [')
  assert rows[0][9:] == ['6.00 ± 0.65', '– |']
  human = (np.mean(5.5 + 20.7) / 35.3 + (5.5 - 0.1) / 12) / 2
  assert rows[2][2].startswith(f'{human:.3f} [')
  assert 'optimality gap' in text


def test_raw_scores_are_those_of_each_run(folder):
  with (folder / 'report/scores.csv').open() as file:
    rows = {row['workdir']: row for row in csv.DictReader(file)}
  row = rows[f'{folder}/0.2,Boxing-v5,3']
  assert (row['task'], row['seed'], row['score']) == ('Boxing-v5', '3', '11.0')
  np.testing.assert_allclose(float(row['scaled_score']), 10.9 / 12)
  row = rows[f'{folder}/failed']
  assert (row['score'], row['scaled_score'], row['eval/return']) == (
    '',
    '',
    '2.0',
  )


def test_commands_and_versions_are_told(text):
  assert (
    'seedrl train --config=vtrace_catch --config.env.id=Boxing-v5 '
    '--config.optimizer.learning_rate=0.2 --config.seed=3 '
    '--config.total_env_frames=1000 --workdir=runs/again/0.2,Boxing-v5,3\n'
  ) in text
  table = text.partition('## Versions')[2]
  counts = [line.split(' | ')[0] for line in table.splitlines()[4:]]
  assert counts == ['| runs', '| ---', '| 16', '| 1']


def test_unequal_runs_and_lacking_tasks_are_said(tmp_path):
  for name, task, rate in [
    ('a', 'Pong-v5', 0.1),
    ('b', 'Boxing-v5', 0.1),
    ('c', 'Boxing-v5', 0.1),
    ('d', 'Boxing-v5', 0.2),
  ]:
    rates = {'optimizer__learning_rate': rate, 'env__id': task}
    study_runs.write(tmp_path / name, [1.0], **rates)
  text = _write(tmp_path)
  assert '**Unequal numbers of runs:**' in text
  assert 'Left out, as not every algorithm has runs: Pong-v5.' in text


def test_one_task_has_no_table_over_tasks(tmp_path):
  study_runs.write(tmp_path / 'a', [1.0], num_eval_envs=0)
  text = _write(tmp_path)
  assert '**No curve:** vtrace on Catch-v0. These runs share too few' in text
  assert '| 1 | 1.000 | 1.000 | 1.000 | – | – |' in text
  assert 'Final scores over' not in text
  assert 'final training return: the mean of the last 100' in text


def test_without_a_finished_run_there_is_none(tmp_path):
  study_runs.write(tmp_path / 'a', [1.0], 'failed: x')
  with pytest.raises(ValueError, match='no run of 1 has finished with a score'):
    _write(tmp_path)
  assert not (tmp_path / 'report').exists()


def test_curves_cover_what_all_runs_share(folder):
  study = results.Study(results.gather([str(folder)]))
  tasks, algorithm = study.common_tasks, study.algorithms[0]
  stacked = figures.stack(study, algorithm, tasks[1:], results.FRAMES)
  assert stacked is not None
  grid, (values,) = stacked
  np.testing.assert_allclose(grid[[0, -1]], [500, 1000])
  # From 1 to 4, 5, 6 and 7.
  np.testing.assert_allclose(values[:, 30], [2.5, 3.0, 3.5, 4.0])
  stacked = figures.stack(study, algorithm, tasks, results.SECONDS)
  assert stacked is not None
  grid, (boxing, pong) = stacked
  np.testing.assert_allclose(grid[[0, -1]], [60, 120])
  np.testing.assert_allclose(boxing[:, -1], (np.arange(4, 8) - 0.1) / 12)
  np.testing.assert_allclose(pong[:, -1], (np.arange(4, 8) + 20.7) / 35.3)


def test_profile_and_curves_are_drawn(folder):
  study = results.Study(results.gather([str(folder)]))
  drawn = figures.draw_all(study)
  (profile,) = drawn['profiles.png'].axes
  assert len(profile.lines) == 2
  shares = np.asarray(profile.lines[0].get_ydata())
  assert shares[0] == 1 and shares[-1] == 0 and np.all(np.diff(shares) <= 0)
  titles = [axes.get_title() for axes in drawn['frames.png'].axes]
  assert titles == ['2 tasks', 'Boxing-v5', 'Pong-v5']
  axes = drawn['wall_clock.png'].axes[2]
  assert axes.get_xlabel() == 'wall clock'
  np.testing.assert_allclose(axes.lines[1].get_ydata()[-1], 9.5)


_HEAD = 'time/updates,time/env_frames,time/elapsed_s,rollout/return,eval/return'
_ROW = f'{_HEAD}\n1,1000,60,'


@pytest.mark.parametrize(
  ('name', 'texts', 'sentence'),
  [
    (
      'summary.json',
      [
        *('', 'null', '[1]', '5', '{"a":', '[' * 10**5, '{"status": 5}'),
        *('{"env_frames": "x"}', '{"env_frames": NaN}', '\udcff'),
        *('{"mean_return_100": []}', '{"eval_mean_return": "x"}'),
        f'{{"eval_mean_return": {10**400}}}',
        f'{{"env_frames": {10**400}}}',
      ],
      r'summary\.json is damaged',
    ),
    (
      'evaluations.jsonl',
      ['x', '[]', '{}', '{"actions": "greedy", "returns": 1}', '\udcff'],
      r'evaluations\.jsonl is damaged',
    ),
    (
      'versions.jsonl',
      ['x', '5', '[]', '\udcff'],
      r'versions\.jsonl is damaged',
    ),
    ('config.json', ['null', '{}', '{"env": 5}'], r'config\.json is damaged'),
    (
      'metrics.csv',
      ['', 'a,b\n1,2\n', '\udcff\n', _HEAD, f'{_HEAD}\n1,2\n'],
      r'no run of 1 has finished .*metrics\.csv (is damaged|has no complete)',
    ),
    (
      'metrics.csv',
      ['time/updates,time/env_frames\n1,1000\n'],
      r'no run of 1 has finished .* has no column time/elapsed_s',
    ),
    (
      'summary.json',
      [f'{{"eval_mean_return": {x}}}' for x in ('NaN', 'Infinity', '1e308')],
      'no run of 1 has finished .* without a finite eval/return',
    ),
    (
      'metrics.csv',
      [f'{_ROW}x,y\n', f'{_ROW}inf,nan\n', f'{_ROW}1,1e308\n2,9,9,1,-1e308\n'],
      '',
    ),
    (
      'metrics.csv',
      ['time/updates,time/env_frames,time/elapsed_s\n1,1,1\n'],
      '',
    ),
  ],
)
def test_odd_files_are_one_sentence(tmp_path, name, texts, sentence):
  study_runs.write(tmp_path, [1.0])
  (tmp_path / 'evaluations.jsonl').touch()
  good = (tmp_path / name).read_bytes()
  for text in texts:
    (tmp_path / name).write_bytes(text.encode(errors='surrogateescape'))
    if sentence:
      with pytest.raises(ValueError, match=sentence):
        _write(tmp_path)
    else:
      assert 'Runs: 1, of them finished: 1.' in _write(tmp_path)
  (tmp_path / name).write_bytes(good)
  assert 'Runs: 1, of them finished: 1.' in _write(tmp_path)
