"""Tests of whole runs in this process: what they write and how they resume."""

import json
import shutil
import threading

import chex
import numpy as np
import pytest

from seedrl_jax.run import saved_config
from seedrl_jax.runtime import workdir
from tests import runs
from tests.runtime.writers import test_event_log


def test_leaves_a_complete_work_directory_and_nothing_open(tmp_path):
  # All step at once, so that those for evaluation do not lag behind.
  config = runs.tiny(
    log__writers=('csv', 'tensorboard'), num_eval_envs=2, env__batch_size=6
  )
  runs.Run(config, tmp_path / 'warm-up').train()
  before, files = set(threading.enumerate()), runs.open_files()
  tmp_path /= 'run'
  run = runs.Run(config, tmp_path)
  summary = run.train()
  assert set(summary) == runs.SUMMARY_KEYS
  assert summary == runs.summary(tmp_path)
  assert summary['status'] == 'finished'
  # At most the steps of one update, and those in flight, too many.
  assert 400 <= summary['env_frames'] < 600
  assert summary['env_frames'] == summary['env_steps']
  assert summary['policy_lag_mean'] >= 0
  last = runs.rows(tmp_path)[-1]
  assert last.keys() <= runs.documented_columns()
  for name in ('env_frames', 'env_steps', 'updates', 'mean_return_100'):
    assert float(last[runs.COLUMNS[name]]) == summary[name], name
  # An episode of Catch has nine steps and ends with a reward of -1 or 1.
  assert float(last['rollout/length_steps']) == 9
  assert float(last['eval/length_steps']) == 9
  episodes = float(last['rollout/episodes'])
  assert episodes == 4 * (summary['env_steps'] // 4 // 9)
  caught = (summary['mean_return_100'] + 1) / 2 * episodes
  assert caught == pytest.approx(round(caught))
  # Each of the two environments has ended as many episodes as one of the four.
  caught = (summary['eval_mean_return'] + 1) / 2 * min(20, episodes / 2)
  assert caught == pytest.approx(round(caught))
  saved = json.loads((tmp_path / 'config.json').read_text())
  assert saved['env']['id'] == 'Catch-v0'
  assert runs.steps(tmp_path) == [summary['updates']]
  assert any((tmp_path / 'tensorboard').iterdir())
  assert ' of the time: ' in run.output or 'No part of the' in run.output
  assert f'seedrl plot --workdir={tmp_path}' in run.output
  assert set(threading.enumerate()) <= before
  assert runs.open_files() <= files


def test_unrolls_longer_than_the_run_end_with_it(tmp_path):
  config = runs.tiny(unroll_length=100_000, log__every_seconds=60.0)
  summary = runs.Run(config, tmp_path).train()
  assert (summary['status'], summary['updates']) == ('finished', 0)
  # The four environments step together.
  assert 400 <= summary['env_frames'] <= 400 + 4


def test_resumes_where_it_ended(tmp_path):
  first = runs.Run(runs.tiny(num_eval_envs=2), tmp_path)
  before = first.train()
  length = len(runs.rows(tmp_path))
  config = runs.tiny(num_eval_envs=2, total_env_frames=800)
  run = runs.Run(config, tmp_path)
  assert f'Resuming from checkpoint {before["updates"]}:' in run.output
  assert 'total_env_frames: 400 -> 800' in run.output
  chex.assert_trees_all_equal(run.params, first.params)
  after = run.train()
  for name in ('env_frames', 'seconds', 'updates'):
    assert after[name] > before[name], name
  assert after['env_frames'] >= 800
  # None counts twice: an update takes its transitions, and the steps between
  # two episodes, which Catch has every nine steps.
  transitions = after['env_steps'] * 10 / 9 + 2 * config.env.num_envs
  used = after['updates'] * config.batch_size * config.unroll_length
  assert used <= transitions
  for name in ('time/elapsed_s', 'time/env_frames', 'time/updates'):
    values = runs.column(tmp_path, name)
    assert len(values) > length
    assert values == sorted(values), name
  # The first row is of this start alone.
  row = {k: float(v or 0) for k, v in runs.rows(tmp_path)[length].items()}
  seconds = row['time/elapsed_s'] - before['seconds']
  frames = row['time/env_frames'] - before['env_frames']
  np.testing.assert_allclose(row['time/frames_per_s'], frames / seconds)


def test_a_run_that_cannot_go_on_changes_nothing(tmp_path):
  runs.Run(runs.tiny(), tmp_path).train()

  def files() -> dict[object, int]:
    # The lock changes nothing of the run.
    return {
      p: p.stat().st_mtime_ns
      for p in tmp_path.rglob('*')
      if p.is_file() and p.name != 'run.lock'
    }

  before = files()
  finished = runs.Run(runs.tiny(), tmp_path)
  summary = finished.train()
  assert summary['env_frames'] == runs.summary(tmp_path)['env_frames']
  assert 'nothing was trained or changed. Raise ' in finished.output
  for change, names in (
    ({'network__hidden_sizes': (9,)}, r'network.hidden_sizes: \[8\] -> \[9\]'),
    ({'loss__target_entropy': 0.5}, 'is missing in the checkpoint, '),
  ):
    with pytest.raises(ValueError, match=names):
      runs.Run(runs.tiny(total_env_frames=800, **change), tmp_path)
  assert files() == before

  kept = (tmp_path / 'metrics.csv').read_text()
  for path in (tmp_path / 'checkpoints').iterdir():
    path.write_bytes(b'')
  for _ in range(2):
    with pytest.raises(ValueError, match=r'No checkpoint in .* is sound'):
      runs.Run(runs.tiny(), tmp_path)
  assert (tmp_path / 'metrics.csv').read_text() == kept


def test_a_refused_start_leaves_no_folder(tmp_path):
  with pytest.raises(ValueError, match='a stream has 4 environments'):
    runs.Run(runs.tiny(env__batch_size=99), tmp_path / 'a/b')
  assert not list(tmp_path.iterdir())


def test_a_run_killed_while_it_compiles_keeps_its_configuration(
  tmp_path, monkeypatch
):
  run = runs.Run(runs.tiny(seed=7), tmp_path / 'new')

  def kill():
    shutil.copytree(tmp_path / 'new', tmp_path / 'killed')
    raise ValueError('It broke.')

  monkeypatch.setattr(run.system._training, 'compile', kill)
  with pytest.raises(ValueError, match=r'It broke\.'):
    run.train()
  saved = saved_config.read(workdir.Workdir(tmp_path / 'killed'))
  assert saved is not None and saved.seed == 7
  again = runs.Run(runs.tiny(seed=7), tmp_path / 'killed')
  assert 'There is no checkpoint in ' in again.output
  assert again.train()['status'] == 'finished'
  assert len((tmp_path / 'killed/versions.jsonl').open().readlines()) == 2


def test_stop_before_the_first_update_is_clean(tmp_path):
  run = runs.Run(runs.tiny(), tmp_path)
  run.system.stop()
  assert run.train()['status'] == 'stopped'
  assert 'Stopping, with a last checkpoint.' in run.output
  assert runs.steps(tmp_path) == [0]
  assert runs.Run(runs.tiny(), tmp_path).train()['status'] == 'finished'


@pytest.mark.parametrize('deterministic', [False, True])
@pytest.mark.parametrize('error', [SystemExit(3), KeyboardInterrupt()])
def test_an_exit_in_a_callback_stops_the_run_and_goes_on(
  tmp_path, error, deterministic
):
  config = runs.tiny(
    total_env_frames=10**9,
    log__every_seconds=0.01,
    deterministic=deterministic,
  )
  run = runs.Run(config, tmp_path)

  def leave(summary):
    if summary.updates:
      raise error

  run.system._training.on_report = leave
  with pytest.raises(type(error)) as e:
    run.train()
  assert e.value is error
  assert 'Stopping, with a last checkpoint.' in run.output
  summary = runs.summary(tmp_path)
  assert summary['status'] == 'stopped'
  assert runs.steps(tmp_path) == [summary['updates']]


def test_a_second_interrupt_waits_for_no_checkpoint(tmp_path):
  run = runs.Run(
    runs.tiny(total_env_frames=10**9, log__every_seconds=0.01), tmp_path
  )

  def interrupt_twice(summary):
    run.system.stop()
    raise KeyboardInterrupt

  run.system._training.on_report = interrupt_twice
  with pytest.raises(KeyboardInterrupt):
    run.train()
  assert not runs.steps(tmp_path)


def test_damaged_newest_checkpoint_gives_way_to_the_one_before(tmp_path):
  config = runs.tiny(log__writers=('csv', 'tensorboard'))
  runs.Run(config, tmp_path).train()
  config.total_env_frames = 800
  runs.Run(config, tmp_path).train()
  old, new = runs.steps(tmp_path)
  path = tmp_path / f'checkpoints/{new}'
  path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
  run = runs.Run(config, tmp_path)
  assert f'Checkpoint {new} is damaged' in run.output
  assert f'Resuming from checkpoint {old}:' in run.output
  assert run.train()['status'] == 'finished'
  values = runs.column(tmp_path, 'time/updates')
  assert values == sorted(values)
  # Both logs were rolled back.
  events = test_event_log.read_events(tmp_path / 'tensorboard')
  events = [step for tag, _, step in events if tag == 'time/updates']
  assert sorted(events) == runs.column(tmp_path, 'time/env_frames')


@pytest.mark.parametrize(
  'values',
  [
    {'env__num_envs': 2, 'batch_size': 8},
    {'env__num_envs': 3, 'num_eval_envs': 2, 'env__batch_size': 5},
    {'topology__streams_per_device': 2, 'num_eval_envs': 1},
    {'learner__micro_batches': 2, 'learner__publish_period': 3},
  ],
)
def test_finishes_in_unusual_shapes(tmp_path, monkeypatch, values):
  config = runs.tiny(**values)
  run = runs.Run(config, tmp_path)
  workers, counters = run.system.parts.workers, run.system._counters
  is_finished = counters.is_finished

  def is_evaluated_too():
    # An episode of Catch has nine steps; other streams may be faster.
    moved = sum(worker.counters.eval_steps for worker in workers)
    return is_finished() and moved >= 9 * config.num_eval_envs

  monkeypatch.setattr(counters, 'is_finished', is_evaluated_too)
  summary = run.train()
  assert summary['status'] == 'finished'
  # When the last one was in time, others may have been on their way: two in the
  # queue, two with the prefetcher, two with each assembler's thread.
  batches = 400 // (5 * config.batch_size)
  assert summary['updates'] >= batches - 4 - 2 * len(workers)
  evaluated = bool(config.num_eval_envs)
  assert (summary['eval_mean_return'] is not None) == evaluated


def test_deterministic_runs_are_bit_equal_and_resume(tmp_path):
  config = runs.tiny(
    **runs.toy('pixels'),
    deterministic=True,
    total_env_frames=300,
    network__torso='mlp',
    network__lstm_size=3,
    network__frame_stack=2,
    network__use_previous_action=True,
  )
  a = runs.train_reproducibly(config, tmp_path)
  resumed = runs.Run(config, tmp_path / 'a')
  fresh = runs.Run(config, tmp_path / 'fresh')
  key, own, other = (
    run.system.parts.workers[0].device_step.key for run in (a, resumed, fresh)
  )
  np.testing.assert_array_equal(own, key)
  assert not np.array_equal(other, key)
  states = [run.system.parts.learner.state() for run in (a, resumed)]
  chex.assert_trees_all_equal(*states)
  for run in (resumed, fresh):
    run.system.stop()
    run.train()


def test_a_run_ends_at_its_target(tmp_path):
  config = runs.tiny(total_env_frames=10**9, target_return=-1.0)
  config.log.every_seconds = 0.05
  run = runs.Run(config, tmp_path)
  summary = run.train()
  assert summary['status'] == 'finished'
  assert summary['env_frames'] < 10**9
  assert runs.column(tmp_path, 'rollout/episodes')[-1] >= 100
  assert runs.column(tmp_path, 'time/cpu_s')[-1] > 0
  again = runs.Run(config, tmp_path)
  assert again.train()['env_frames'] == summary['env_frames']
  assert 'The run is finished' in again.output
