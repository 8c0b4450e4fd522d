"""Checkpoints of a run: the learner's and the replay's, now or in a thread."""

import threading
from collections.abc import Callable, Iterator

import jax
import numpy as np
import pytest

from seedrl_jax.configs import base as base_config
from seedrl_jax.learner import update
from seedrl_jax.replay import base as replay
from seedrl_jax.replay.embedded import store as embedded
from seedrl_jax.run import checkpointing
from seedrl_jax.runtime import file_io, report
from seedrl_jax.runtime import workdir as workdir_lib
from tests.patience import PATIENCE
from tests.replay.conftest import Toy


class _Run:
  """A work directory, a store of toy unrolls, and the printed sentences."""

  def __init__(self, path, monkeypatch):
    self._monkeypatch = monkeypatch
    self.folder = workdir_lib.Workdir(path)
    self.folder.path.mkdir(parents=True, exist_ok=True)
    self.folder.write_config(base_config.get_config())
    self.messages: list[str] = []
    self.store = embedded.EmbeddedStore([Toy().queue(8)], Toy().spec(), 2)
    self.open()

  def open(self) -> None:
    """Opens the checkpoints as a starting run does."""
    self.saved = checkpointing.RunCheckpoints(
      base_config.get_config(), self.folder, self.messages.append
    )
    self.state = self.saved.restore(_state(0))
    self.writer = checkpointing.CheckpointWriter(
      self.saved.storage,
      self.saved.restore_replay(self.store),
      self.messages.append,
    )
    self.messages.clear()

  def close(self) -> None:
    """Closes the checkpoints as an ending run does."""
    self.writer.finish()

  def reopen(self) -> None:
    """Starts the run again."""
    self.close()
    self.store = embedded.EmbeddedStore([Toy().queue(8)], Toy().spec(), 2)
    self.open()

  def save(
    self,
    step: int,
    now: checkpointing.RecordSource = report.RunRecord,
    wait: bool = True,
  ) -> None:
    """Saves, here or in the thread."""
    if wait:
      self.writer.save(lambda: _state(step), now)
    else:
      self.writer.save_midway(lambda: _state(step), now, wait=False)

  def block_replay(self) -> threading.Event:
    """Makes the store slow to write; returns the event that it waits for."""
    go = threading.Event()
    checkpoint = self.store.checkpoint

    def wait(path: str, on_snapshot: Callable[[], None]) -> None:
      def settled() -> None:
        on_snapshot()
        assert go.wait(PATIENCE)

      checkpoint(path, settled)

    self._monkeypatch.setattr(self.store, 'checkpoint', wait)
    return go


@pytest.fixture(name='run')
def run_fixture(tmp_path, monkeypatch) -> Iterator[_Run]:
  new_run = _Run(tmp_path, monkeypatch)
  yield new_run
  new_run.close()
  new_run.store.close()


def _state(step: int) -> update.LearnerState:
  return update.LearnerState(
    agent={'w': np.full(3, step, np.float32)},
    step=np.int32(step),
    key=np.array([0, step], np.uint32),
  )


def _assert_is(state: update.LearnerState, step: int) -> None:
  jax.tree.map(np.testing.assert_array_equal, state, _state(step))


@pytest.mark.parametrize('wait', [True, False])
def test_learner_and_replay_come_back(run, wait):
  toy = Toy()
  toy.insert(run.store, 't', [1, 2])
  assert run.saved.replay_path is None
  run.save(3, lambda: report.RunRecord(env_steps=7), wait)
  run.reopen()
  _assert_is(run.state, 3)
  assert run.saved.record.env_steps == 7
  assert run.saved.record.replay == '3'
  assert run.saved.replay_path == str(run.folder.replay / '3')
  assert toy.numbers(run.store.table('t').sampler(2).sample()) == [1, 2]


def test_the_run_goes_on_while_a_checkpoint_is_written(run):
  go = run.block_replay()
  state = _state(1)
  run.writer.save_midway(lambda: state, report.RunRecord, wait=False)
  # The next update overwrites the memory; that must not be saved.
  state.agent['w'][:] = 99.0

  def forbidden():
    raise AssertionError('What is left out needs no state.')

  run.writer.save_midway(forbidden, forbidden, wait=False)
  (sentence,) = run.messages
  assert sentence.startswith('A checkpoint is left out')
  go.set()
  run.reopen()
  _assert_is(run.state, 1)


@pytest.mark.parametrize('wait', [True, False])
def test_all_parts_are_of_one_moment(run, monkeypatch, wait):
  """The run waits while the replay settles, and takes its counters then."""
  toy, checkpoint, calls = Toy(), run.store.checkpoint, []
  toy.insert(run.store, 't', [1, 2])

  def slow(path: str, on_snapshot: Callable[[], None]) -> None:
    # Like unrolls that were on their way to a server.
    toy.insert(run.store, 't', [3, 4])
    checkpoint(path, on_snapshot)

  def now() -> report.RunRecord:
    calls.append(run.store.info()['t'].size)
    return report.RunRecord(env_steps=100 + calls[-1])

  monkeypatch.setattr(run.store, 'checkpoint', slow)
  run.save(1, now, wait)
  assert calls == [4]
  toy.insert(run.store, 't', [5, 6])
  run.reopen()
  assert run.saved.record.env_steps == 104
  assert run.store.info()['t'].size == 4


def test_the_last_checkpoint_waits_for_the_one_before(run):
  go = run.block_replay()
  run.save(1, wait=False)
  threading.Thread(target=go.set).start()
  run.save(2)
  run.reopen()
  _assert_is(run.state, 2)
  assert run.saved.record.replay == '2'


def test_a_checkpoint_that_hangs_is_left_alone_in_time(run):
  go = run.block_replay()
  run.save(1, wait=False)
  run.writer.finish(timeout=0.0)
  assert run.saved.storage.steps() == []
  go.set()
  run.writer.finish()
  assert run.saved.storage.steps() == [1]


def _no_room(*unused: object) -> None:
  raise file_io.NotWritten('Checkpoint 1 could not be written (Full).')


@pytest.mark.parametrize('wait', [True, False])
def test_a_full_disk_is_told_and_the_next_save_tries_again(
  run, monkeypatch, wait
):
  run.save(1)
  with monkeypatch.context() as patched:
    patched.setattr(run.saved.storage, 'save', _no_room)
    if wait:
      with pytest.raises(file_io.NotWritten):
        run.save(2)
    else:
      run.save(2, wait=False)
      run.writer.finish()
      assert run.messages[-1] == (
        'Checkpoint 1 could not be written (Full). The next save tries again.'
      )
  # The replay's part is deleted, too.
  assert [p.name for p in run.folder.replay.iterdir()] == ['1']
  run.save(3, wait=wait)
  run.writer.finish()
  assert run.saved.storage.steps() == [1, 3]


@pytest.mark.parametrize('find', ['save', 'last', 'finish'])
def test_a_failure_in_the_thread_is_raised_later(run, monkeypatch, find):
  def fail(*unused: object) -> None:
    raise OSError('No room.')

  with monkeypatch.context() as patched:
    patched.setattr(run.saved.storage, 'save', fail)
    run.save(1, wait=False)
    run.writer._thread.join(PATIENCE)
  with pytest.raises(OSError, match='No room'):
    if find == 'finish':
      run.writer.finish()
    else:
      run.save(2, wait=find == 'last')
  # What was learned since is saved all the same.
  assert run.saved.storage.steps() == ([2] if find == 'last' else [])
  # The error is raised once.
  run.writer.finish()


def test_a_replay_that_cannot_be_saved_costs_a_sentence(run, monkeypatch):
  def fail(*unused: object) -> None:
    raise replay.StoreClosed('The store was closed.')

  monkeypatch.setattr(run.store, 'checkpoint', fail)
  run.save(1, lambda: report.RunRecord(env_steps=3))
  assert 'Checkpoint 1 has no replay: The store was closed.' in run.messages
  run.reopen()
  _assert_is(run.state, 1)
  assert (run.saved.record.env_steps, run.saved.record.replay) == (3, '')


def test_a_record_of_another_release_is_one_sentence(run):
  run.saved.storage.save(1, _state(1), {'more': 1})
  with pytest.raises(workdir_lib.WorkdirError, match='another release'):
    run.reopen()


def test_a_record_names_no_other_folder(run):
  run.saved.storage.save(1, _state(1), {'replay': '../7'})
  run.reopen()
  assert run.saved.replay_path is None
