"""Checkpoints of a run: the learner's and the replay's, now or in a thread."""

import threading
from collections.abc import Callable, Iterator

import jax
import numpy as np
import pytest

from configs import base as base_config
from seedrl_jax import replay, saved_run
from seedrl_jax.learner import update
from seedrl_jax.runtime import record
from seedrl_jax.runtime import workdir as workdir_lib
from tests.replay.conftest import PATIENCE, Toy


class _Run:
  """A work directory, a store of toy unrolls, and what the user was told."""

  def __init__(self, path, monkeypatch):
    self._monkeypatch = monkeypatch
    self.folder = workdir_lib.Workdir(path)
    self.folder.create()
    self.folder.write_config(base_config.get_config())
    self.said: list[str] = []
    self.store = replay.EmbeddedStore([Toy().queue(8)], Toy().spec(), 2)
    self.open()

  def open(self) -> None:
    """Opens the checkpoints as a run that starts does."""
    self.saved = saved_run.SavedRun(
      base_config.get_config(), self.folder, self.said.append
    )
    self.state = self.saved.restore(_state(0))
    self.saved.restore_replay(self.store)
    self.said.clear()

  def reopen(self) -> None:
    """Starts the run again."""
    self.saved.close()
    self.store.reset('t')
    self.open()

  def block_replay(self) -> tuple[threading.Event, threading.Event]:
    """Makes the store slow; returns what is set when it begins, and may go."""
    begun, go = threading.Event(), threading.Event()
    checkpoint = self.store.checkpoint

    def wait(path: str) -> None:
      begun.set()
      assert go.wait(PATIENCE)
      checkpoint(path)

    self._monkeypatch.setattr(self.store, 'checkpoint', wait)
    return begun, go


@pytest.fixture(name='run')
def run_fixture(tmp_path, monkeypatch) -> Iterator[_Run]:
  made = _Run(tmp_path, monkeypatch)
  yield made
  made.saved.close()
  made.store.close()


def _state(step: int) -> update.LearnerState:
  return update.LearnerState(
    params={'w': np.full(3, step, np.float32)},
    target_params=(),
    opt_state=(),
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
  run.saved.save(_state(3), record.RunRecord(env_steps=7), wait=wait)
  run.reopen()
  _assert_is(run.state, 3)
  assert run.saved.record.env_steps == 7
  assert run.saved.record.replay == '3'
  assert run.saved.replay_path == str(run.folder.replay / '3')
  assert toy.numbers(run.store.sampler('t', 2).sample(0)) == [1, 2]


def test_the_run_goes_on_while_a_checkpoint_is_written(run):
  begun, go = run.block_replay()
  state = _state(1)
  run.saved.save(state, record.RunRecord(), wait=False)
  assert begun.wait(PATIENCE)
  # What the next update does to the memory must not be saved.
  state.params['w'][:] = 99.0
  run.saved.save(_state(2), record.RunRecord(), wait=False)
  (sentence,) = run.said
  assert sentence.startswith('Checkpoint 2 is left out')
  go.set()
  run.reopen()
  _assert_is(run.state, 1)


def test_the_last_checkpoint_waits_for_the_one_before(run):
  begun, go = run.block_replay()
  run.saved.save(_state(1), record.RunRecord(), wait=False)
  assert begun.wait(PATIENCE)
  threading.Thread(target=go.set).start()
  run.saved.save(_state(2), record.RunRecord())
  run.reopen()
  _assert_is(run.state, 2)
  assert run.saved.record.replay == '2'


@pytest.mark.parametrize('find', ['save', 'finish', 'close'])
def test_a_failure_in_the_thread_is_raised_later(run, monkeypatch, find):
  def fail(*unused: object) -> None:
    raise OSError('No room.')

  with monkeypatch.context() as patched:
    patched.setattr(run.saved._checkpoints, 'save', fail)
    run.saved.save(_state(1), record.RunRecord(), wait=False)
    run.saved._thread.join(PATIENCE)
  report: Callable[[], None] = {
    'save': lambda: run.saved.save(_state(2), record.RunRecord(), wait=False),
    'finish': run.saved.finish,
    'close': run.saved.close,
  }[find]
  with pytest.raises(OSError, match='No room'):
    report()
  # Once is enough.
  run.saved.finish()


def test_an_update_is_saved_once(run, monkeypatch):
  run.saved.save(_state(1), record.RunRecord(), wait=False)
  run.saved.finish()

  def fail(path: str) -> None:
    raise AssertionError(path)

  monkeypatch.setattr(run.store, 'checkpoint', fail)
  for wait in (True, False):
    run.saved.save(_state(1), record.RunRecord(), wait=wait)
    run.saved.finish()
  assert run.said == []


def test_a_replay_that_cannot_be_saved_costs_a_sentence(run, monkeypatch):
  def fail(path: str) -> None:
    raise replay.StoreClosed('The store was closed.')

  monkeypatch.setattr(run.store, 'checkpoint', fail)
  run.saved.save(_state(1), record.RunRecord(), wait=False)
  run.saved.finish()
  assert run.said == ['Checkpoint 1 has no replay: The store was closed.']
  run.reopen()
  _assert_is(run.state, 1)
