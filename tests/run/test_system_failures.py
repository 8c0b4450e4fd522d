"""Tests of runs that fail: nothing hangs or is lost, all errors are said."""

import threading

import jax
import numpy as np
import pytest

from seedrl_jax.envs import env_thread
from seedrl_jax.learner import learner as learner_lib
from seedrl_jax.replay import base as replay
from seedrl_jax.run import system
from seedrl_jax.runtime import checkpoints, file_io
from tests import runs
from tests.patience import PATIENCE


def _assert_no_thread_is_left():
  names = {thread.name for thread in threading.enumerate()}
  assert not names & {'prefetch', 'learner', 'inference-0', 'inference-1'}


def _assert_sound(run):
  """The newest checkpoint is finite and fits."""
  checkpoint = checkpoints.Checkpoints(run.workdir / 'checkpoints').restore(
    run.initial_state
  )
  assert checkpoint is not None
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(checkpoint.state))
  return checkpoint


@pytest.mark.parametrize('deterministic', [False, True])
def test_loss_that_is_not_finite(tmp_path, deterministic):
  config = runs.tiny(
    **runs.toy('pixels', bad_after=60, failure='huge'),
    network__torso='mlp',
    loss__reward_scale=1e14,
    total_env_frames=10**9,
    checkpoint__every_seconds=0.0,
    deterministic=deterministic,
  )
  run = runs.Run(config, tmp_path)
  with pytest.raises(system.RunFailed, match=r'^Update \d+ is not finite'):
    run.train()
  status = runs.summary(tmp_path)['status']
  assert status.startswith('failed: NonFiniteError: Update ')
  checkpoint = _assert_sound(run)
  updates = runs.summary(tmp_path)['updates']
  assert f'Update {updates + 1} is' in status
  # The bad one makes no checkpoint; in threads, others may be left out.
  assert 0 < checkpoint.step <= updates
  assert checkpoint.step == updates or not deterministic
  _assert_no_thread_is_left()


@pytest.mark.parametrize('bad_after', [0, 60])
def test_what_nothing_was_learned_in_has_no_summary_on_the_terminal(
  tmp_path, bad_after
):
  config = runs.tiny(
    **runs.toy('pixels', bad_after=bad_after, failure='raise'),
    network__torso='mlp',
    total_env_frames=10**9,
    deterministic=True,
  )
  run = runs.Run(config, tmp_path)
  with pytest.raises(system.RunFailed, match=r'\.py, line \d+\)\.$'):
    run.train()
  assert runs.summary(tmp_path)['status'].startswith('failed: OSError: ')
  has_trained = bad_after > 0
  assert ('Failed after ' in run.output) == has_trained
  assert run.output.splitlines()[-1].startswith('Compiled ') != has_trained


@pytest.mark.parametrize('deterministic', [False, True])
def test_environment_that_hangs_is_named_after_a_last_checkpoint(
  tmp_path, monkeypatch, deterministic
):
  monkeypatch.setattr(env_thread, 'END_SECONDS', 0.1)
  config = runs.tiny(
    **runs.toy('pixels', bad_after=60, failure='hang'),
    network__torso='mlp',
    total_env_frames=10**9,
    deterministic=deterministic,
  )
  run = runs.Run(config, tmp_path)
  runs.HANGS.clear()

  def stop():
    assert runs.HANGS.wait(PATIENCE)
    run.system.stop()

  thread = threading.Thread(target=stop)
  thread.start()
  with pytest.raises(
    system.RunFailed, match=r'^Environment \d of tests\.runs:pixels did not r'
  ):
    run.train()
  thread.join()
  summary = runs.summary(tmp_path)
  # Nothing of the run is missing.
  assert summary['status'] == 'stopped'
  assert _assert_sound(run).step == summary['updates'] > 0
  _assert_no_thread_is_left()


@pytest.mark.parametrize('broken', ['recv', 'shard', 'step', 'report'])
def test_part_that_raises(tmp_path, broken):
  # No machine can finish this first.
  config = runs.tiny(total_env_frames=10**9, log__every_seconds=0.01)
  run = runs.Run(config, tmp_path)
  parts = run.system.parts
  calls = 0
  owner, name, thread = {
    'recv': (parts.workers[0].stream, 'recv', 'inference-0'),
    'shard': (parts.prefetcher, 'fetch', 'prefetch'),
    'step': (parts.learner, 'step', 'learner'),
    'report': (run.system.reporter, 'write', 'main'),
  }[broken]
  works = getattr(owner, name)

  def fails_later(*args, **kwargs):
    nonlocal calls
    calls += 1
    # The learner's part works again, the report never.
    if calls == 30 or broken == 'report':
      raise OSError('It broke.')
    return works(*args, **kwargs)

  setattr(owner, name, fails_later)
  with pytest.raises(system.RunFailed) as e:
    run.train()
  assert f'Thread {thread} failed' in str(e.value)
  assert 'fails_later' in str(e.value)  # the traceback
  assert runs.summary(tmp_path)['status'] == 'failed: OSError: It broke.'
  assert _assert_sound(run).step == runs.summary(tmp_path)['updates']
  _assert_no_thread_is_left()
  # The run can be resumed.
  again = runs.Run(runs.tiny(), tmp_path)
  assert 'Resuming from checkpoint' in again.output
  again.system.stop()
  again.train()


def test_environment_that_cannot_close(tmp_path):
  config = runs.tiny(topology__streams_per_device=2)
  streams = runs.Streams(config)
  run = runs.Run(config, tmp_path, make_streams=streams)
  first = run.system.parts.workers[0]
  close = first.close

  def fails():
    # Only the first call raises.
    first.close = close
    close()
    raise OSError('It does not close.')

  first.close = fails
  with pytest.raises(system.RunFailed, match='It does not close'):
    run.train()
  assert streams.closed == {0, 1}
  assert _assert_sound(run).step > 0
  _assert_no_thread_is_left()


def test_a_checkpoint_under_way_is_finished_before_the_store_is_closed(
  tmp_path, monkeypatch
):
  """A Reverb store cannot be saved later; its failure hides no other."""
  run = runs.Run(runs.tiny(checkpoint__every_seconds=0.0), tmp_path)
  writer, parts = run.system._writer, run.system.parts
  go, events = threading.Event(), []
  save, step = run.system._checkpoints.storage.save, parts.learner.step
  close, finish = parts.store.close, writer.finish

  def save_slowly(*args):
    assert go.wait(PATIENCE)
    save(*args)
    events.append('saved')
    raise OSError('No room.')

  def fail_later(item, progress):
    if writer._thread.ident:
      raise learner_lib.NonFiniteError('Update 2 is not finite.')
    step(item, progress)

  def release_and_finish(*args):
    if writer._thread.ident:
      go.set()
    finish(*args)

  def close_store():
    events.append('closed')
    close()

  monkeypatch.setattr(run.system._checkpoints.storage, 'save', save_slowly)
  monkeypatch.setattr(parts.learner, 'step', fail_later)
  monkeypatch.setattr(parts.store, 'close', close_store)
  monkeypatch.setattr(writer, 'finish', release_and_finish)
  with pytest.raises(system.RunFailed, match='is not finite'):
    run.train()
  assert events[:2] == ['saved', 'closed']


@pytest.mark.parametrize('deterministic', [False, True])
def test_full_disk_fails_the_last_checkpoint_alone(
  tmp_path, monkeypatch, deterministic
):
  config = runs.tiny(checkpoint__every_seconds=0.0, deterministic=deterministic)
  run = runs.Run(config, tmp_path)

  def fail(step, *unused):
    raise file_io.NotWritten(f'Checkpoint {step} could not be written (Full).')

  monkeypatch.setattr(run.system._checkpoints.storage, 'save', fail)
  # No traceback.
  with pytest.raises(
    system.RunFailed, match=r'^Checkpoint \d+ could not be written \(Full\)\.$'
  ):
    run.train()
  assert ' could not be written (Full). The next save tries' in run.output
  summary = runs.summary(tmp_path)
  assert summary['env_frames'] >= config.total_env_frames
  assert summary['status'].startswith('failed: NotWritten: Checkpoint ')


def test_a_start_that_fails_closes_all_and_changes_nothing(
  tmp_path, monkeypatch
):
  runs.Run(runs.tiny(), tmp_path).train()

  def files():
    return {p: p.read_bytes() for p in tmp_path.rglob('*') if p.is_file()}

  before, stores = files(), []
  make_store = system.opening.replay_factory.make_store

  def remember(*args, **kwargs):
    stores.append(make_store(*args, **kwargs))
    return stores[-1]

  monkeypatch.setattr(system.opening.replay_factory, 'make_store', remember)
  config = runs.tiny(topology__streams_per_device=3, total_env_frames=800)
  streams = runs.Streams(config, fail_at=2)
  with pytest.raises(ValueError, match='this stream cannot be had'):
    runs.Run(config, tmp_path, make_streams=streams)
  assert streams.closed == {0, 1}
  with pytest.raises(replay.StoreClosed):
    stores[0].table('unrolls').sampler(4, 1).sample(wait=False)
  assert files() == before

  def fails(*args):
    raise TypeError('Shapes do not fit.')

  streams = runs.Streams(config)
  run = runs.Run(config, tmp_path, make_streams=streams)
  run.system.parts.learner.compile = fails
  with pytest.raises(TypeError, match='Shapes do not fit'):
    run.train()
  assert streams.closed == {0, 1, 2}
  assert files() == before
