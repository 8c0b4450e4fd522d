"""Tests the memory that workers share: counters, parameters and locks."""

import dataclasses
import functools
import os
import signal
import subprocess
import sys
import threading
import types

import numpy as np
import pytest

from seedrl_jax.configs import dqn_cartpole
from seedrl_jax.hosts import coordinator
from seedrl_jax.workers import board as board_lib
from seedrl_jax.workers import children, flat, shared
from tests import runs
from tests.patience import PATIENCE
from tests.workers import test_flat

_FIGURES = {
  **{'seconds': 1.5, 'env_steps': 10, 'eval_steps': 1, 'updates': 2},
  **{'environment_wait': 0.5, 'store_wait': 0.0, 'idle_env_seconds': 2.0},
  **{'learner_wait': 0.25, 'lag_sum': 3.0, 'lag_updates': 2, 'num_envs': 4},
  **{'dropped_sum': 0.0, 'cpu_seconds': 1.0},
}


def _boards(count, **kwargs):
  first = board_lib.Board(count, **kwargs)
  return [first] + [
    board_lib.Board(count, i, first.fd, **kwargs) for i in range(1, count)
  ]


def test_counters_of_all_workers_are_seen_by_each():
  boards = _boards(2, version=100)
  boards[0].write_figures(_FIGURES)
  boards[1].write_figures({
    **_FIGURES,
    'env_steps': 30,
    'episodes': [[5.0, 7.0, 1.0]],
  })
  boards[1].row.updates += 3
  first, second = boards[0].read_figures()
  assert first == _FIGURES | {'episodes': []}
  assert second == _FIGURES | {'env_steps': 30, 'episodes': [[5.0, 7.0, 1.0]]}
  assert isinstance(second['env_steps'], int)
  # An episode is returned once.
  assert boards[0].read_figures()[1]['episodes'] == []
  assert boards[1].read_figures()[0] == _FIGURES
  assert [board.version() for board in boards] == [103, 103]


def test_counters_outlive_a_process():
  boards = _boards(2)
  boards[1].write_figures(_FIGURES)
  boards[0].restart(1)
  assert boards[0].read_figures()[1]['num_envs'] == 0
  boards[1].write_figures(_FIGURES)
  figures = boards[0].read_figures()[1]
  assert (figures['env_steps'], figures['num_envs']) == (20, 4)


def test_a_worker_for_the_model_waits_for_those_that_act():
  first, second, model = boards = _boards(3, num_models=1)
  assert not model.is_ahead()
  model.count(0)
  assert model.is_ahead()
  first.count(1)
  # Their mean is one half.
  assert model.is_ahead()
  second.count(1)
  second.count(1)
  # Those that act do not wait.
  assert not any(board.is_ahead() for board in boards)
  assert first.metrics()['asynchronous/model_share'] == 1 / 4


def test_only_the_newest_episodes_are_returned():
  boards = _boards(2)
  many = [[float(i), float(i), 0.0] for i in range(250)]
  for start in range(0, 250, 50):
    boards[1].write_figures({**_FIGURES, 'episodes': many[start : start + 50]})
  assert boards[0].read_figures()[1]['episodes'] == many[-100:]


def test_staleness_is_counted():
  (board,) = _boards(1)
  for age in 0, 2, 9:
    board.count(age)
  board.row.stale += 1
  board.row.outlying += 1
  metrics = board.metrics()
  assert metrics['asynchronous/staleness_mean'] == pytest.approx(11 / 3)
  assert metrics['asynchronous/staleness_p99'] == 9
  assert metrics['asynchronous/discarded_share'] == pytest.approx(2 / 5)


def test_a_run_that_has_failed_and_then_ends_has_failed():
  first, second = _boards(2)
  first.set_ended()
  assert second.has_ended() and not second.has_failed()
  first.set_ended(has_failed=True)
  first.set_ended()
  assert second.has_ended() and second.has_failed()


def _trainer(**optimizer):
  agent, state = test_flat.trained_state(**optimizer)
  trainer = flat.FlatTrainer(agent)
  return trainer, trainer.flatten(state)


def _workers(trainer, vectors, count, make=shared.SharedMemory, **kwargs):
  boards = _boards(count)
  first = make(trainer, boards[0], fds={}, **kwargs)
  first.fill(vectors)
  return [first] + [
    make(trainer, b, fds=first.fds, **kwargs) for b in boards[1:]
  ]


@pytest.mark.parametrize('statistics', [True, False])
def test_all_workers_train_the_same_parameters(statistics):
  trainer, vectors = _trainer(name='rmsprop', rmsprop_momentum=0.5)
  first, second = _workers(trainer, vectors, 2, statistics=statistics)
  gradient = np.ones(trainer.size, np.float32)
  first.apply(gradient, 0, 0.1)
  actual = second.read()
  assert actual.version == 1 and first.read().version == 1
  np.testing.assert_array_equal(actual.params, first.read().params)
  change, changes = trainer.step(
    vectors.params, vectors.optimizer, gradient, 0.1
  )
  np.testing.assert_allclose(actual.params, vectors.params + change, atol=1e-6)
  for own, before, added in zip(
    second.vectors().optimizer, vectors.optimizer, changes, strict=True
  ):
    expected = before + added if statistics else before
    np.testing.assert_allclose(own, expected, rtol=1e-6)


@pytest.mark.parametrize(('period', 'rate'), [(2, 1.0), (1, 0.5)])
def test_the_target_follows_all_workers_updates(period, rate):
  trainer, vectors = _trainer(make=dqn_cartpole.get_config)
  trainer.trainer = dataclasses.replace(
    trainer.trainer, target_update_period=period, target_update_rate=rate
  )
  workers = _workers(trainer, vectors, 2)
  target = vectors.target
  for update in range(4):
    workers[update % 2].apply(np.ones(trainer.size, np.float32), update, 0.1)
    actual = workers[0].read()
    if (update + 1) % period == 0:
      target = target + rate * (actual.params - target)
    np.testing.assert_allclose(actual.target, target, atol=1e-6)


def test_stale_gradients_change_nothing():
  trainer, vectors = _trainer()
  (worker,) = _workers(trainer, vectors, 1, max_staleness=1)
  for version in (0, 0, 0):
    before = worker.read()
    worker.apply(np.ones(trainer.size, np.float32), version, 0.1)
  after = worker.read()
  assert after.version == before.version == 2
  np.testing.assert_array_equal(after.params, before.params)


class _Subtracting:
  """Stands for a trainer whose step is minus the gradient."""

  size, target_size = 10_000, 0
  shapes = ()
  trainer = types.SimpleNamespace(target_update_period=0)

  @property
  def step(self):
    return self

  def __call__(self, params, leaves, gradient, learning_rate):
    return -learning_rate * gradient, []


_ZEROS = flat.Vectors(np.zeros(_Subtracting.size), np.zeros(0), [])
_UPDATES = 300


def _apply_often(worker):
  gradient = np.ones(_Subtracting.size, np.float32)
  for _ in range(_UPDATES):
    worker.apply(gradient, worker.read().version, 1.0)


def apply_as_second(board, parameters):
  """Applies gradients in another process, to memory of these descriptors."""
  own = board_lib.Board(2, 1, board)
  fds = {'parameters': parameters}
  _apply_often(shared.SharedMemory(_Subtracting(), own, fds, lock=True))


@pytest.fixture(name='second')
def second_fixture():
  """Returns a function that starts a second worker, and returns both."""
  (board, _), trainer = _boards(2), _Subtracting()
  worker = shared.SharedMemory(trainer, board, {}, lock=True)
  worker.fill(_ZEROS)
  fds = board.fd, worker.fds['parameters']

  def start(function):
    code = f'from {__name__} import {function} as f; f{fds}'
    child = subprocess.Popen(
      [sys.executable, '-c', code],
      env=runs.environment_of({}),
      pass_fds=fds,
      start_new_session=True,
    )
    return worker, child

  return start


def test_no_update_of_two_processes_is_lost_with_a_lock(second):
  worker, child = second('apply_as_second')
  _apply_often(worker)
  assert child.wait() == 0
  snapshot = worker.read()
  assert snapshot.version == 2 * _UPDATES
  assert (snapshot.params == -2 * _UPDATES).all()


class _Stopping(_Subtracting):
  """Stops its process while that holds the lock."""

  def __call__(self, *args):
    os.kill(os.getpid(), signal.SIGSTOP)
    return super().__call__(*args)


def apply_and_stop(board, parameters):
  """As `apply_as_second`, but never ends."""
  own = board_lib.Board(2, 1, board)
  fds = {'parameters': parameters}
  _apply_often(shared.SharedMemory(_Stopping(), own, fds, lock=True))


def test_a_worker_that_stops_with_the_lock_does_not_keep_it(second):
  worker, child = second('apply_and_stop')
  # Waits until it is stopped.
  os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
  assert not worker._try_lock()
  assert not children.wait_for_end(child, 0.1)
  _apply_often(worker)
  assert worker.read().version == _UPDATES


@pytest.fixture(name='synchronous')
def synchronous_fixture():
  """Returns two workers, and the list of others that are ready."""
  trainer, boards, ready = _Subtracting(), _boards(2), [1]
  make = functools.partial(
    shared.SynchronousMemory, trainer, ready=lambda: ready, count=2
  )
  first = make(board=boards[0], fds={}, patience=PATIENCE)
  second = make(board=boards[1], fds=first.fds, patience=PATIENCE)
  return first, second, ready


def _gradient(value=1.0):
  return np.full(_Subtracting.size, value, np.float32)


def test_synchronous_workers_apply_the_mean_of_their_gradients(synchronous):
  first, second, _ = synchronous
  for value in (1.0, 2.0):
    arguments = _gradient(3 * value), 0, 1.0
    other = threading.Thread(target=second.apply, args=arguments)
    other.start()
    first.apply(_gradient(value), 0, 1.0)
    other.join()
  actual = second.read()
  assert actual.version == 2
  assert (actual.params == -2.0 - 4.0).all()


def test_a_synchronous_worker_that_is_gone_or_late(synchronous):
  """One that has died is left out; one that does not answer is an error."""
  first, _, ready = synchronous
  first._patience = 0.01
  with pytest.raises(coordinator.WorkerFailed, match='Worker 1 has not'):
    first.apply(_gradient(), 0, 1.0)
  ready.clear()
  first.apply(_gradient(), 0, 1.0)
  assert (first.read().params == -1.0).all()


def test_a_synchronous_worker_does_not_wait_for_a_run_that_has_ended(
  synchronous,
):
  first, second, _ = synchronous
  first._board.set_ended()
  second.apply(_gradient(), 0, 1.0)
  assert not first._board.has_failed()
