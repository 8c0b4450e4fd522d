"""Tests for seedrl_jax/run/callbacks.py, and of the best checkpoint."""

import math
from typing import NamedTuple

import numpy as np
import pytest

from seedrl_jax.evaluation import policy
from seedrl_jax.run import callbacks, checkpointing
from seedrl_jax.runtime import report, workdir
from tests import runs


class State(NamedTuple):
  step: np.ndarray


def _report(frames=0, **metrics):
  summary = report.Summary(frames, 0, 0.0, 0.0, 1, None, None, 0.0, 'running')
  metrics = {name.replace('__', '/'): x for name, x in metrics.items()}
  return callbacks.Report.make(summary, metrics, None)


def test_stops_at_a_return():
  stop = callbacks.StopAtReturn(5.0)
  returns = [None, 4.9, 5.0]
  going = [stop(_report(eval__return=x)) for x in returns]
  assert going == [True, True, False]
  with pytest.raises(ValueError, match="metric='eval/retrn': there is no such"):
    callbacks.StopAtReturn(5.0, 'eval/retrn')(_report(eval__return=1.0))


def test_stops_without_improvement():
  stop = callbacks.StopWithoutImprovement(100, 'rollout/return', least=1.0)
  returns = [(0, None), (500, 1.0), (599, 2.0), (600, 2.0)]
  going = [stop(_report(f, rollout__return=x)) for f, x in returns]
  assert going == [True, True, True, False]
  assert stop(_report(601, rollout__return=2.1))


def test_all_of_several_are_called():
  calls = []
  several = [lambda run: False, calls.append]
  assert callbacks.call_all(several)('run') is False
  assert calls == ['run'] and callbacks.call_all(None)('run')


def _train(folder, on_report, **values):
  config = runs.tiny(
    num_eval_envs=4, log__every_seconds=0.01, total_env_frames=10**8, **values
  )
  run = runs.Run(config, folder)
  run.system._training.on_report = on_report
  return run


def test_evaluates_saves_and_stops(tmp_path):
  evaluations = []

  def on_report(run):
    if not evaluations:
      assert run.metrics['time/updates'] == run.updates
      evaluations.append(run.evaluate(episodes=3, seed=2))
      run.save()
    # The last checkpoint would replace one of the same update.
    elif (steps := runs.steps(tmp_path)) and run.updates > steps[-1]:
      run.stop()

  run = _train(tmp_path, on_report)
  assert run.train()['status'] == 'stopped'
  (evaluation,) = evaluations
  assert evaluation.returns.shape == (3,) and evaluation.env_id == 'Catch-v0'
  # One that was asked for, and the last.
  assert len(runs.steps(tmp_path)) == 2


def test_keeps_the_best(tmp_path):
  best_path = tmp_path / 'best'
  run = _train(
    tmp_path, lambda run: not best_path.exists(), checkpoint__keep_best=True
  )
  run.train()
  (file,) = best_path.iterdir()
  assert f'Best checkpoint: {file.name}, with an evaluation of ' in run.output
  player, _ = policy.load(tmp_path, 'best')
  assert player.version == int(file.name)


def test_the_last_evaluation_may_be_the_best(tmp_path):
  run = runs.Run(
    runs.tiny(
      checkpoint__keep_best=True,
      num_eval_envs=4,
      total_env_frames=4000,
      # No report but the last.
      log__every_seconds=600.0,
    ),
    tmp_path,
  )
  summary = run.train()
  (file,) = (tmp_path / 'best').iterdir()
  assert int(file.name) == summary['updates']


def test_goes_on_from_the_best(tmp_path):
  directory, messages = workdir.Workdir(tmp_path), []
  for step, returns, kept in (
    (5, [1.0] * 20, '5'),
    (9, [0.5] * 20, '5'),
    # After a restart from an older checkpoint.
    (3, [2.0] * 20, '3'),
  ):
    state = State(np.int32(step))
    record = report.RunRecord(eval_returns=returns)
    window = report.EpisodeWindow(returns, 20)
    keeper = checkpointing.BestCheckpoint(directory, messages.append, window)
    # Episodes of an earlier start do not count.
    keeper.save_if_due(pytest.fail, pytest.fail)
    window.count = 20
    keeper.save_if_due(lambda: state, lambda record=record: record)  # noqa: B023
    keeper.describe()
    assert [path.name for path in directory.best.iterdir()] == [kept]
  assert messages[-1] == 'Best checkpoint: 3, with an evaluation of 2.00.'
  assert math.isclose(keeper._best, 2.0)


def test_a_run_may_have_no_best(tmp_path):
  with pytest.raises(ValueError, match='holds no'):
    policy.load(tmp_path, 'best')
