"""Tests for seedrl_jax/runtime/report.py."""

import dataclasses

import numpy as np
import pytest

from seedrl_jax.runtime import report

# Seconds, steps, evaluation's, updates, four waits, lags and environments.
_START = report.Snapshot(10.0, 100, 0, 3, 1.0, 2.0, 3.0, 4.0, 5.0, 3, 4)
_NOW = report.Snapshot(14.0, 500, 0, 5, 3.0, 2.4, 7.0, 5.0, 8.0, 5, 10)


def _reporter(returns=()):
  before = report.RunRecord(returns=returns)
  return report.Reporter(_START, action_repeat=4, num_workers=2, before=before)


def test_row_is_the_difference_since_the_last():
  reporter = _reporter()
  row, waits = reporter.row(
    _NOW, lag_max=7, metrics={'total': 0.5, 'replay/x': 1.0}
  )
  assert row['time/elapsed_s'] == 14.0
  assert row['time/env_steps'] == 500
  assert row['time/env_frames'] == 2000
  assert row['time/frames_per_s'] == 400.0
  assert row['time/updates'] == 5
  assert row['time/updates_per_s'] == 0.5
  assert row['replay/policy_lag_mean_batches'] == 1.5
  assert row['replay/policy_lag_max_batches'] == 7
  assert (row['losses/total'], row['replay/x']) == (0.5, 1.0)
  # 2 threads or 10 environments, 4 seconds.
  shares = dataclasses.astuple(waits)
  assert shares == pytest.approx((0.1, 0.25, 0.05, 0.25))
  assert row['time/wait_learner_for_data_share'] == 0.25


def test_second_row_starts_where_the_first_ended():
  reporter = _reporter()
  reporter.row(_NOW, 7, {})
  row, waits = reporter.row(_NOW, 0, {})
  assert row['replay/policy_lag_mean_batches'] is None
  assert row['replay/policy_lag_max_batches'] is None
  assert waits == report.Waits(0.0, 0.0, 0.0, 0.0)
  assert reporter.waits(_START, _NOW).inference_for_envs == 0.25


def test_speed_is_over_the_time_since_the_last_new_frames():
  reporter = _reporter()
  reporter.row(_NOW, 7, {})
  idle = dataclasses.replace(_NOW, seconds=_NOW.seconds + 30)
  assert reporter.row(idle, 0, {})[0]['time/frames_per_s'] == 400.0
  later = dataclasses.replace(idle, seconds=idle.seconds + 10, env_steps=1500)
  assert reporter.row(later, 0, {})[0]['time/frames_per_s'] == 4 * 1000 / 40


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


def test_means_are_of_the_last_episodes():
  reporter = _reporter(returns=[1000.0] * 60)
  for i in range(100):
    reporter.training.add(float(i), i)
    reporter.evaluation.add(float(i), i)
  assert reporter.training.mean_return() == np.mean(range(100))
  assert reporter.training.mean_length() == np.mean(range(100))
  assert reporter.evaluation.mean_return() == np.mean(range(80, 100))


def test_hosts_figures_add_up_but_for_what_they_share():
  one = report.Snapshot(5.0, 10, 2, 7, 0.5, 0.25, 3.0, 1.0, 6.0, 3, 4)
  two = report.Snapshot(9.0, 20, 0, 7, 0.5, 0.5, 4.0, 2.0, 8.0, 3, 5)
  assert one.plus(two) == report.Snapshot(
    5.0, 30, 2, 7, 1.0, 0.75, 7.0, 3.0, 14.0, 6, 9
  )


# Waits of environments, of inference for them and for the learner, and of that.
@pytest.mark.parametrize(
  ('waits', 'name', 'share'),
  [
    # A queue, or a ratio that stalls acting: learning is slow.
    (report.Waits(0.0, 0.5, 0.4, 0.0), 'learner', '40%'),
    # A queue, or a ratio that stalls learning: acting is slow.
    (report.Waits(0.0, 0.8, 0.0, 0.9), 'envs', '80%'),
    (report.Waits(0.6, 0.0, 0.0, 0.9), 'inference', '60%'),
    # Both sometimes wait for the other's half of the environments.
    (report.Waits(0.3, 0.4, 0.0, 0.0), 'envs', '40%'),
    # CartPole: inference sometimes waits for bursts of unrolls.
    (report.Waits(0.12, 0.42, 0.13, 0.71), 'envs', '42%'),
    # Both wait at the store.
    (report.Waits(0.0, 0.0, 0.5, 0.69), 'store', '50%'),
    # Environments on devices, whose unrolls begin when the learner needs them.
    (report.DeviceWaits(0.0, 0.0, 0.5, 0.69), 'acting', '69%'),
    (report.DeviceWaits(0.0, 0.0, 0.69, 0.5), 'learner', '69%'),
    # Neither waits at the store: without a ratio, acting sets the pace.
    (report.Waits(0.0, 0.0, 0.09, 0.0), 'inference', '0%'),
  ],
)
def test_bottleneck(waits, name, share):
  assert waits.short() == f'{name} ({share})'
  text = waits.report()
  is_short = share == '0%'
  assert is_short == (text == 'No part of the run waits long for another.')
  assert is_short or f' {share} of the time: ' in text
