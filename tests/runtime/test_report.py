"""Rows of metrics out of growing counters."""

import pathlib

import numpy as np
import pytest

from seedrl_jax.runtime import progress, report

_START = report.Snapshot(
  seconds=10.0,
  env_steps=100,
  updates=3,
  environment_wait=1.0,
  store_wait=2.0,
  idle_env_seconds=3.0,
  learner_wait=4.0,
  lag_sum=5.0,
  lag_updates=3,
  num_envs=4,
)
_NOW = report.Snapshot(
  seconds=14.0,
  env_steps=500,
  updates=5,
  environment_wait=3.0,
  store_wait=2.4,
  idle_env_seconds=7.0,
  learner_wait=5.0,
  lag_sum=8.0,
  lag_updates=5,
  num_envs=10,
)


def _reporter(**kwargs):
  return report.Reporter(_START, action_repeat=4, num_workers=2, **kwargs)


def test_row_is_the_difference_since_the_last():
  reporter = _reporter()
  row, waits = reporter.row(_NOW, lag_max=7, metrics={'total': 0.5})
  assert row['time/elapsed_s'] == 14.0
  assert row['time/env_steps'] == 500
  assert row['time/env_frames'] == 2000
  assert row['time/frames_per_s'] == 400.0
  assert row['time/updates'] == 5
  assert row['time/updates_per_s'] == 0.5
  assert row['replay/policy_lag_mean_updates'] == 1.5
  assert row['replay/policy_lag_max_updates'] == 7
  assert row['losses/total'] == 0.5
  # Of 2 threads or 10 environments, in 4 seconds.
  expected = progress.Waits(0.1, 0.25, 0.05, 0.25)
  assert [
    waits.envs_for_actions,
    waits.inference_for_envs,
    waits.inference_for_learner,
    waits.learner_for_data,
  ] == pytest.approx([0.1, 0.25, 0.05, 0.25])
  assert row['time/wait_learner_for_data_share'] == expected.learner_for_data


def test_second_row_starts_where_the_first_ended():
  reporter = _reporter()
  reporter.row(_NOW, 7, {})
  row, waits = reporter.row(_NOW, 0, {})
  assert row['time/frames_per_s'] == 0.0
  assert row['replay/policy_lag_mean_updates'] is None
  assert row['replay/policy_lag_max_updates'] is None
  assert waits == progress.Waits(0.0, 0.0, 0.0, 0.0)
  assert reporter.total_waits(_NOW).inference_for_envs == 0.25


def test_shares_are_shares():
  # A wait of many reports may be counted in the last of them.
  late = report.Snapshot(
    seconds=11.0,
    environment_wait=99.0,
    store_wait=99.0,
    idle_env_seconds=99.0,
    learner_wait=99.0,
  )
  _, waits = _reporter().row(late, 0, {})
  assert waits == progress.Waits(1.0, 1.0, 1.0, 1.0)


def test_agents_may_group_their_metrics():
  row, _ = _reporter().row(_NOW, 0, {'replay/weight': 1.0, 'norm': 2.0})
  assert row['replay/weight'] == 1.0
  assert row['losses/norm'] == 2.0


def test_episodes_of_training_and_evaluation_are_apart():
  reporter = _reporter(returns=[1.0, 3.0])
  row, _ = reporter.row(_NOW, 0, {})
  assert row['rollout/return'] == 2.0
  assert row['eval/return'] is None
  assert row['rollout/length_steps'] is None
  reporter.training.add(8.0, 20)
  reporter.evaluation.add(-1.0, 5)
  row, _ = reporter.row(_NOW, 0, {})
  assert row['rollout/return'] == 4.0
  assert row['eval/return'] == -1.0
  assert row['rollout/length_steps'] == 20.0
  assert row['eval/length_steps'] == 5.0


def test_window_is_of_the_last_hundred_episodes():
  window = report.EpisodeWindow([1000.0] * 60)
  for i in range(100):
    window.add(float(i), i)
  assert window.mean_return() == window.mean_length() == 49.5


def test_evaluation_forgets_earlier():
  reporter = _reporter()
  for i in range(100):
    reporter.evaluation.add(float(i), i)
  assert reporter.evaluation.mean_return() == np.mean(range(80, 100))


def test_progress_text():
  reporter = _reporter(returns=[21.0])
  row, waits = reporter.row(_NOW, 7, {})
  assert report.progress_text(row, 8000, waits.short()) == (
    '2000/8000 frames (25%) | 400 frames/s | return 21.0 (eval -) | 5 updates '
    '| lag 1.5 | waits for envs (25%)'
  )


def test_summary_text():
  summary = {
    'env_frames': 2000,
    'seconds': 14.0,
    'frames_per_second': 142.9,
    'updates': 5,
    'mean_return_100': 21.0,
    'eval_mean_return': None,
    'status': 'failed: ValueError: broken',
  }
  waits = progress.Waits(0.1, 0.8, 0.0, 0.2)
  text = report.summary_text(summary, waits, pathlib.Path('runs/a'))
  assert text.startswith('Failed after 2000 frames in 14.0 s (143 frames/s)')
  assert 'last 100 episodes: 21.00; evaluation (last 20): -.' in text
  assert '\nBottleneck: the environments' in text
  assert 'runs/a/metrics.csv' in text


def test_hosts_figures_add_up_but_for_what_they_share():
  one = report.Snapshot(5.0, 10, 2, 7, 0.5, 0.25, 3.0, 1.0, 6.0, 3, 4)
  two = report.Snapshot(9.0, 20, 0, 7, 0.5, 0.5, 4.0, 2.0, 8.0, 3, 5)
  assert one.plus(two) == report.Snapshot(
    5.0, 30, 2, 7, 1.0, 0.75, 7.0, 3.0, 14.0, 6, 9
  )
