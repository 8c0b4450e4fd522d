"""Tests for seedrl_jax/lab/studies/results.py and atari.py."""

import json

import ml_collections
import numpy as np
import pytest

from seedrl_jax.envs import atari
from seedrl_jax.lab.studies import results
from tests.lab.studies import study_runs


def _study(folder) -> results.Study:
  return results.Study(results.gather([str(folder)]))


def test_finds_runs_in_and_below_folders_once(tmp_path):
  paths = [study_runs.write(tmp_path / name, [1.0]) for name in ('a', 'b/c')]
  (tmp_path / 'link').symlink_to(tmp_path / 'a')
  folders = [tmp_path / 'a', tmp_path, tmp_path / 'link']
  assert results.find([str(folder) for folder in folders]) == paths
  assert results.find([f'{tmp_path}/[ax]']) == paths[:1]
  assert results.find([f'{tmp_path}/?'], 'summary.json') == paths
  (tmp_path / 'empty').mkdir()
  with pytest.raises(ValueError, match=r'empty holds no run \(no config.json'):
    results.find([str(tmp_path / 'empty')])


def test_an_algorithm_has_all_tasks_and_seeds(tmp_path):
  for task in ('Catch-v0', 'Pong-v5'):
    for seed, rate in [(1, 0.1), (2, 0.1), (1, 0.2)]:
      study_runs.write(
        tmp_path / f'{task},{seed},{rate}',
        [seed],
        seed=seed,
        env__id=task,
        optimizer__learning_rate=rate,
      )
  study = _study(tmp_path)
  first, second = study.algorithms
  assert (first, second) == (
    'vtrace, optimizer.learning_rate=0.1',
    'vtrace, optimizer.learning_rate=0.2',
  )
  assert study.common_tasks == ['Catch-v0', 'Pong-v5']
  # The evaluation return.
  np.testing.assert_array_equal(study.scores(first, 'Pong-v5'), [2, 3])
  assert not study.runs(second, 'Catch-v0')[0].run.config['seed'] - 1


def test_the_arguments_of_a_factory_make_a_task(tmp_path):
  for size in 3, 4:
    study_runs.write(
      tmp_path / str(size),
      [size],
      env__factory='my:maze',
      env__factory_kwargs=ml_collections.ConfigDict({'size': size}),
    )
  study = _study(tmp_path)
  assert study.tasks == ["Catch-v0 {'size': 3}", "Catch-v0 {'size': 4}"]
  assert len(study.algorithms) == 1


def test_a_run_of_several_tasks_has_a_result_of_each(tmp_path):
  folder = study_runs.write(tmp_path / 'a', [1.0, 2.0])
  metrics = folder / 'metrics.csv'
  columns = ('rollout/return/x', 'eval/return/x', 'rollout/return/y')
  header, *rows = metrics.read_text().split()
  rows = [f'{row},{i},{10 * i},{20 * i},{30 * i}' for i, row in enumerate(rows)]
  metrics.write_text(
    '\n'.join([','.join([header, *columns, 'eval/return/y']), *rows, ''])
  )
  line = {'actions': 'greedy', 'returns': [5, 6, 7], 'tasks': ['x', 'y', 'x']}
  (folder / 'evaluations.jsonl').write_text(json.dumps(line) + '\n')
  x, y = results.gather([str(tmp_path)])
  assert (x.task, y.task) == ('x', 'y')
  assert (x.last[results.EVALUATION], y.last[results.TRAINING]) == (10, 20)
  assert y.run.columns[results.EVALUATION].tolist() == [0, 30]
  assert x.evaluations == {'greedy': [5, 7]}
  assert y.evaluations == {'greedy': [6]}


def test_training_returns_count_unless_all_evaluate(tmp_path):
  study_runs.write(tmp_path / 'a', [1.0, 5.0], seed=1)
  assert _study(tmp_path).column == results.EVALUATION
  study_runs.write(tmp_path / 'b', [7.0], num_eval_envs=0)
  study = _study(tmp_path)
  assert [study.score(result) for result in study.results] == [5.0, 7.0]


@pytest.mark.parametrize(
  ('status', 'total', 'expected_status'),
  [
    ('finished', study_runs.TOTAL, 'finished'),
    # Raised since.
    ('finished', 2000, 'finished, 1,000 of 2,000 frames'),
    ('stopped', 1001, 'stopped, 1,000 of 1,001 frames'),
    ('failed: x', study_runs.TOTAL, 'failed: x, 1,000 of 1,000 frames'),
    ('', 4000, 'running, or killed, 1,000 of 4,000 frames'),
    # Killed before the summary was written.
    ('', study_runs.TOTAL, 'finished'),
  ],
)
def test_only_finished_runs_count(tmp_path, status, total, expected_status):
  study_runs.write(tmp_path, [2.0, 3.0], status, total_env_frames=total)
  study = _study(tmp_path)
  assert study.results[0].status == expected_status
  assert study.counts(study.results[0]) == (expected_status == 'finished')
  assert study.score(study.results[0]) == 4.0


def test_runs_without_rows_or_score_do_not_count(tmp_path):
  study_runs.write(tmp_path / 'a', [1.0])
  (tmp_path / 'a/metrics.csv').unlink()
  study_runs.write(tmp_path / 'b', [1.0])
  summary = tmp_path / 'b/summary.json'
  summary.write_text(summary.read_text().replace('2.0', 'null'))
  study = _study(tmp_path)
  assert 'has no metrics.csv' in study.results[0].status
  assert not study.counted
  summary.write_text('{')
  with pytest.raises(ValueError, match=r'summary.json is damaged .* delete it'):
    _study(tmp_path)


@pytest.mark.parametrize(
  ('scores', 'expected', 'text'),
  [
    ({'Pong-v5': [-20.7, 14.6], 'Alien-v5': [7127.7]}, [0, 1, 1], 'a human'),
    ({'Pong-v5': [14.6]}, [1], 'a human'),
    ({'Catch-v0': [3, 5]}, [3, 5], ''),
    ({'Catch-v0': [3, 4, 5], 'Pong-v5': [7]}, [0, 0.5, 1, 1], 'the best'),
  ],
)
def test_scores_are_scaled(tmp_path, scores, expected, text):
  for task, values in scores.items():
    for i, value in enumerate(values):
      name = f'{task}{i}'
      study_runs.write(tmp_path / name, [value - 1], env__id=task, seed=i)
  study = _study(tmp_path)
  (algorithm,) = study.algorithms
  scaled = dict(zip(study.common_tasks, study.scaled(algorithm), strict=True))
  values = np.concatenate([scaled[task] for task in scores])
  np.testing.assert_allclose(values, expected, atol=1e-12)
  assert text in study.scale.text


def test_atari_has_57_games_and_knows_their_ids():
  assert len(atari.SCORES) == 57
  assert all(low < high for low, high in atari.SCORES.values())
  # As Wang et al. have them.
  assert atari.SCORES['Pong'] == (-20.7, 14.6)
  assert atari.SCORES['Zaxxon'] == (32.5, 9173.3)
  assert atari.game('Pong-v5') == 'Pong'
  assert atari.game('gymnasium:ALE/UpNDown-v5') == 'UpNDown'
  assert atari.game('PongNoFrameskip-v4') == 'Pong'
  assert atari.game('Catch-v0') is None


def test_envpool_has_all_games():
  envpool = pytest.importorskip('envpool')
  assert {f'{game}-v5' for game in atari.SCORES} <= {*envpool.list_all_envs()}
