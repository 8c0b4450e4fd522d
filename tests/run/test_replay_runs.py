"""Whole runs of a replay agent: ratio, start, priorities, resuming."""

import chex
import ml_collections
import numpy as np
import pytest

from seedrl_jax.configs import r2d2_base
from tests import runs


def _config(**values) -> ml_collections.ConfigDict:
  return runs.tiny(
    r2d2_base.get_config,
    **{
      'env__num_envs': 6,
      'num_eval_envs': 2,
      'burn_in': 2,
      'network__lstm_size': 4,
      'network__head_hidden_size': 8,
      'loss__target_update_period': 10,
      'total_env_frames': 2_000,
      'log__every_seconds': 0.02,
      'replay__max_size': 200,
      'replay__min_size': 40,
      'replay__samples_per_insert': 2.0,
      **values,
    },
  )


@pytest.mark.parametrize('ratio', [0.5, 6.0])
def test_keeps_the_replay_ratio_on_several_devices(tmp_path, ratio):
  config = _config(
    topology__max_devices=4,
    topology__inference_to_training='2:2',
    replay__samples_per_insert=ratio,
    replay__tolerance=0.0,
  )
  run = runs.Run(config, tmp_path)
  summary = run.train()
  last = runs.rows(tmp_path)[-1]
  assert last.keys() <= runs.documented_columns()
  assert np.isfinite(float(last['losses/total']))
  measured = float(last['replay/samples_per_insert'])
  assert measured == pytest.approx(ratio, rel=0.05)
  # All samples but the prefetched batches were trained on.
  samples = float(last['replay/sampled_unrolls'])
  ahead = samples / config.batch_size - summary['updates']
  assert 0 <= ahead <= config.learner.prefetch + 4


def test_learning_starts_at_the_least_size(tmp_path, monkeypatch):
  run = runs.Run(_config(total_env_frames=1_000), tmp_path)
  parts, reporter, sizes = run.system.parts, run.system.reporter, []
  step, begin = parts.learner.step, reporter.open

  def record_step(item, progress):
    sizes.append(parts.store.info()['unrolls'].inserts)
    step(item, progress)

  def open_and_write(*args):
    begin(*args)
    reporter.write()

  monkeypatch.setattr(parts.learner, 'step', record_step)
  monkeypatch.setattr(reporter, 'open', open_and_write)
  run.train()
  assert 'waits for the replay (' in run.output
  assert sizes[0] >= 40


@pytest.mark.parametrize(
  'values',
  [
    # More environments than a batch has columns, and fewer.
    {'learner__micro_batches': 2, 'env__num_envs': 9},
    {
      'replay__sampler': 'uniform',
      'replay__min_size': 10,
      'env__num_envs': 2,
      'unroll_length': 1,
      'burn_in': 0,
      'lookahead': 2,
      'loss__n_steps': 3,
    },
  ],
)
def test_deterministic_runs_are_bit_equal(tmp_path, values):
  params = []
  for name in ('a', 'b'):
    config = _config(deterministic=True, total_env_frames=800, **values)
    run = runs.Run(config, tmp_path / name)
    assert run.train()['updates'] > 0
    params.append(run.params)
  chex.assert_trees_all_equal(*params)


def _rates(config, workdir, monkeypatch):
  """Trains; returns the learning rates of the updates."""
  run = runs.Run(config, workdir)
  updater, rates = run.system.parts.plan.updater, []
  update = updater.step._update

  def record(state, batch, progress):
    result = update(state, batch, progress)
    rates.append(float(result[1].metrics.fetch()['learning_rate']))
    return result

  monkeypatch.setattr(updater.step, '_update', record)
  run.train()
  last = runs.rows(workdir)[-1]
  assert float(last['losses/learning_rate']) == pytest.approx(rates[-1])
  # The first call was for compilation.
  return rates[1:]


@pytest.mark.parametrize(
  'values',
  [
    {'replay__samples_per_insert': 0.5},
    {
      'replay__sampler': 'fifo',
      'replay__max_times_sampled': 1,
      'replay__samples_per_insert': 1.0,
      'replay__min_size': 1,
    },
  ],
)
def test_linear_rate_ends_with_the_frames(tmp_path, monkeypatch, values):
  config = _config(
    **values,
    deterministic=True,
    optimizer__schedule='linear',
    optimizer__learning_rate=1.0,
    optimizer__final_learning_rate=0.5,
  )
  rates = _rates(config, tmp_path, monkeypatch)
  assert (np.diff(rates) <= 0).all()
  # At most 40 of 400 sequences are there before the first update.
  assert 0.9 < rates[0] < 1.0
  assert 0.5 < rates[-1] < 0.53
  # A run that goes on is then at half of its frames.
  config.total_env_frames *= 2
  assert _rates(config, tmp_path, monkeypatch)[0] == pytest.approx(0.75, 0.05)


def test_priorities_come_back_from_the_learner(tmp_path):
  run = runs.Run(_config(), tmp_path)
  updates = []
  table = run.system.parts.store.table('unrolls')
  update = table.update_priorities

  def record(keys, priorities):
    updates.append((keys, priorities))
    update(keys, priorities)

  table.update_priorities = record
  run.train()
  keys, priorities = updates[-1]
  chex.assert_shape([keys, priorities], (4,))
  assert (priorities > 0).all()
  assert len({p for _, ps in updates for p in ps.tolist()}) > 10


def test_resumes_with_its_replay(tmp_path, backend):
  config = _config(replay__backend=backend)
  runs.Run(config, tmp_path).train()
  size = float(runs.rows(tmp_path)[-1]['replay/size_unrolls'])
  assert size > 40
  config.total_env_frames *= 2
  run = runs.Run(config, tmp_path)
  assert run.system.parts.store.info()['unrolls'].size == size
  # The resumed run does not wait for `min_size` again.
  assert run.train()['status'] == 'finished'
  assert 'waits for the replay (' not in run.output
  ratio = runs.column(tmp_path, 'replay/samples_per_insert')[-1]
  assert ratio == pytest.approx(2.0, rel=0.1)
