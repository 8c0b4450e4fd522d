"""Tests of `learner.max_lag` in whole runs."""

import threading
import time

import numpy as np
import pytest

from seedrl_jax.configs import base as base_config
from seedrl_jax.run import plan as plan_lib
from tests import runs
from tests.agents.epochs import keys as epochs_keys
from tests.patience import PATIENCE, wait_until


def _epochs():
  config = base_config.get_config(epochs_keys.set_defaults)
  config.epochs, config.minibatches = 2, 1
  return config


class _Trained:
  """A run, and the ages of all steps that it trained on.

  Attributes:
    lags: for each batch, int `[T, B]`, in batches; the last steps' actions,
      which are the next unrolls', do not count.
    shares: of each batch, what was dropped.
  """

  def __init__(self, config, workdir):
    self.run = run = runs.Run(config, workdir)
    self.lags, self.shares = [], []
    self._per_batch = run.system.parts.plan.agent.updates_per_batch
    self._learner = learner = run.system.parts.learner
    step = learner.step

    def noting_step(item, progress):
      self._note(item)
      step(item, progress)

    learner.step = noting_step
    self._version = learner.counters.updates

  def _note(self, item):
    steps = item.batch.unroll.steps
    versions = np.concatenate(np.asarray(steps.parameter_version), axis=1)[:-1]
    lags, rest = np.divmod(self._version - versions, self._per_batch)
    assert not rest.any()
    self._version += self._per_batch
    first = np.concatenate(np.asarray(steps.step_type), axis=1) == 0
    # What has no transition is not trained on.
    self.lags.append(np.where(first.all(axis=0), 0, lags))
    self.shares.append(item.dropped_share)

  def train(self):
    summary = self.run.train()
    assert self.lags
    return summary


def _config(make=base_config.get_config, **values):
  return runs.tiny(
    make,
    **{
      'learner__prefetch': 4,
      # Room for what is far too old.
      'replay__max_size': 64,
      'log__every_seconds': 0.01,
      'total_env_frames': 600,
      **values,
    },
  )


def _column(workdir, name):
  cells = [row[f'replay/{name}'] for row in runs.rows(workdir)]
  # Some rows have no update.
  return [float(x) for x in cells if x]


@pytest.mark.parametrize(
  'make, values',
  [
    (base_config.get_config, {'num_eval_envs': 2}),
    (base_config.get_config, {'network__lstm_size': 4, 'batch_size': 8}),
    (base_config.get_config, {'deterministic': True}),
    (_epochs, {}),
    (_epochs, {'deterministic': True, 'num_eval_envs': 2}),
  ],
)
def test_zero_is_strict_alternation(make, values, tmp_path):
  trained = _Trained(_config(make, learner__max_lag=0, **values), tmp_path)
  summary = trained.train()
  assert summary['status'] == 'finished'
  assert not np.concatenate(trained.lags, axis=1).any()
  assert not any(trained.shares)
  assert summary['policy_lag_mean'] == 0
  assert set(_column(tmp_path, 'dropped_share')) == {0.0}


_HALVES = {'env__batch_size': 2}
_STREAMS = {'topology__streams_per_device': 2}


@pytest.mark.parametrize(
  'most, values, may_drop',
  [
    (1, {'env__batch_size': 4}, False),
    (2, {'env__batch_size': 4}, False),
    (4, {'env__batch_size': 4}, False),
    # Four blocks of the next round begin before the first is trained on.
    (3, {'batch_size': 1}, False),
    (1, {'batch_size': 6, 'env__batch_size': 4}, False),
    (2, {'batch_size': 3}, True),
    (0, _HALVES, True),
    (1, {**_HALVES, 'num_eval_envs': 3}, True),
    (1, {'env__batch_size': 3}, True),
    (2, {**_STREAMS, 'batch_size': 2, 'num_eval_envs': 1}, True),
    (1, {'topology__max_devices': 4, 'batch_size': 6}, True),
  ],
)
def test_nothing_older_is_trained_on(most, values, may_drop, tmp_path):
  trained = _Trained(_config(learner__max_lag=most, **values), tmp_path)
  assert trained.train()['status'] == 'finished'
  lags = np.concatenate(trained.lags, axis=1)
  assert lags.max() <= most
  if not may_drop:
    assert not any(trained.shares)
    assert max(_column(tmp_path, 'policy_lag_max_batches')) <= most
  # More than nothing is left.
  assert np.mean(trained.shares) < 0.9


def test_drops_what_could_not_be_prevented(tmp_path):
  # The first half begins its next unrolls before the batch is complete.
  trained = _Trained(_config(learner__max_lag=0, **_HALVES), tmp_path)
  trained.train()
  assert max(trained.shares) == 0.5
  assert 0 < max(_column(tmp_path, 'dropped_share')) <= 0.5


def test_resumes_within_the_bound(tmp_path):
  config = _config(
    learner__max_lag=4,
    learner__prefetch=1,
    env__batch_size=4,
    total_env_frames=10**9,
  )
  first = _Trained(config, tmp_path)
  parts, step = first.run.system.parts, first.run.system.parts.learner.step

  def stop_when_two_batches_wait(*args):
    parts.learner.step = step
    wait_until(lambda: parts.store.info()['unrolls'].size >= 8)
    first.run.system.stop()
    # Or else the learner would take them before the run hears of it.
    wait_until(lambda: parts.prefetcher._closed)
    step(*args)

  parts.learner.step = stop_when_two_batches_wait
  config.total_env_frames = first.train()['env_steps'] + 400
  again = _Trained(config, tmp_path)
  gate = again.run.system.parts.gate
  size = again.run.system.parts.store.info()['unrolls'].size
  assert (gate._allocated, gate._inserted) == (size, size)
  # One of the batches may have left it since.
  assert size >= 4
  assert again.train()['status'] == 'finished'
  assert np.concatenate(again.lags, axis=1).max() <= 4
  assert not any(again.shares)


def test_stops_while_inference_waits(tmp_path):
  run = runs.Run(_config(learner__max_lag=0, total_env_frames=10**9), tmp_path)
  parts = run.system.parts
  # Inference never hears of an update.
  parts.learner._on_finished = None
  summaries = []
  thread = threading.Thread(target=lambda: summaries.append(run.train()))
  thread.start()
  wait_until(lambda: parts.gate._changed._waiters)
  run.system.stop()
  thread.join(PATIENCE)
  assert summaries and summaries[0]['status'] == 'stopped'


def test_inferences_wait_is_one_for_the_learner(tmp_path):
  run = runs.Run(_config(learner__max_lag=0), tmp_path)
  (worker,) = run.system.parts.workers
  wait, waits = run.system.parts.gate.wait, []

  def noting_wait():
    before = worker.store_wait
    wait()
    waits.append(worker.store_wait - before)

  run.system.parts.gate.wait = noting_wait
  run.train()
  assert waits and min(waits) > 0
  assert worker.store_wait >= sum(waits)
  assert worker.counters.act >= sum(waits)


@pytest.mark.parametrize(
  'values, message',
  [
    (
      {'replay__sampler': 'uniform', 'replay__max_size': 9},
      'max_lag=1: a replay holds old steps; only a queue',
    ),
    ({'learner__publish_period': 2}, 'leave --config.learner.publish_period'),
    (
      {'batch_size': 1},
      'unrolls of 4 batches at once; give at least 3, or make .* multiple of 4',
    ),
    ({'batch_size': 6, 'learner__max_lag': 0}, 'of 2 batches at once; give at'),
    (
      {'actors__max_envs': 9},
      'unrolls of 5 batches at once; .* --config.batch_size a multiple of 13',
    ),
  ],
)
def test_a_bound_that_cannot_be_kept_is_refused(values, message):
  config = runs.tiny(**{'learner__max_lag': 1, **values})
  with pytest.raises(ValueError, match=message):
    plan_lib.make_plan(config)


@pytest.mark.parametrize('most, size', [(0, 7), (1, 7), (2, 4), (None, 4)])
def test_unrolls_begin_together_within_a_narrow_bound(most, size):
  config = runs.tiny(env__id='Pong-v5', learner__max_lag=most, num_eval_envs=3)
  assert plan_lib.make_plan(config).shares[0].batch_size == size
  config.env.batch_size = 2
  assert plan_lib.make_plan(config).shares[0].batch_size == 2


@pytest.mark.usefixtures('shared_reverb')
@pytest.mark.parametrize('patience', [0.0, 600.0])
def test_nothing_older_from_reverb_is_trained_on(tmp_path, patience):
  config = _config(
    learner__max_lag=1, replay__backend='reverb', replay__patience=patience
  )
  trained = _Trained(config, tmp_path)
  learner = trained.run.system.parts.learner
  step = learner.step

  def slow_step(*args):
    # As slow an update as any: inference has to wait for it.
    time.sleep(0.02)
    return step(*args)

  learner.step = slow_step
  assert trained.train()['status'] == 'finished'
  assert np.concatenate(trained.lags, axis=1).max() <= 1
  assert np.mean(trained.shares) < 0.1
