"""Tests a worker's side of a parameter server, with shards in this process."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax.agents import base
from seedrl_jax.hosts import coordinator
from seedrl_jax.run import layout
from seedrl_jax.workers import board as board_lib
from seedrl_jax.workers import server
from tests.learner import toys
from tests.workers import shards

_OPTIMIZERS = [
  {'name': 'adagrad'},
  {'name': 'rmsprop', 'rmsprop_momentum': 0.5},
  {'name': 'rmsprop', 'rmsprop_centered': True, 'clip_norm': 1.0},
  {'name': 'sgd', 'sgd_momentum': 0.5, 'clip_norm': 1.0},
  {'name': 'adam'},
  {'name': 'radam'},
]


@pytest.fixture
def serve():
  """Returns a function that starts shards and connects workers with them."""
  with contextlib.ExitStack() as stack:

    def make(config, count=1, num_workers=1, version=0, **kwargs):
      config.asynchronous.shards = count
      config.asynchronous.workers = num_workers
      first = board_lib.Board(num_workers, version=version)
      boards = [first] + [
        board_lib.Board(num_workers, i, first.fd) for i in range(1, num_workers)
      ]
      started = shards.Shards(config, first, **kwargs)
      stack.callback(started.close)
      workers = [started.first, *map(started.worker, boards[1:])]
      return started, workers, boards

    yield make


def _apply(worker, times=1, actual=None):
  """Applies a worker's gradients; returns what it then reads."""
  actual = actual or worker.read()
  for _ in range(times):
    gradient = shards.gradient(actual.params, actual.target)
    worker.apply(gradient, actual.version, shards.LEARNING_RATE)
    actual = worker.read()
  return actual


def _config(optimizer):
  config = shards.make_config()
  config.optimizer.update(optimizer)
  return config


@functools.cache
def _states(count, **optimizer):
  """Returns the states after ordinary updates."""
  agent = shards.make_agent(_config(optimizer))
  update = jax.vmap(
    agent.update, in_axes=(0, 0, None, None), axis_name=base.AXIS
  )
  state, batch = jax.tree.map(
    lambda x: jnp.asarray(x)[None],
    (agent.init(jax.random.key(0)), toys.batch_of([1.0])),
  )
  states = []
  for _ in range(count):
    state, _ = jax.jit(update)(state, batch, jax.random.key(0), 0.0)
    states.append(jax.tree.map(lambda x: np.asarray(x[0]), state))
  return states


@pytest.mark.parametrize('count', [1, 2, 3])
@pytest.mark.parametrize('optimizer', _OPTIMIZERS)
def test_shards_update_as_one_trainer(serve, optimizer, count):
  started, (worker,), (board,) = serve(_config(optimizer), count)
  expected = _states(5, **optimizer)
  for number, state in enumerate(expected, start=1):
    actual = _apply(worker)
    assert actual.version == board.version() == number
    np.testing.assert_allclose(actual.params, state.params['w'], atol=1e-6)
    # Of every second update.
    np.testing.assert_allclose(
      actual.target, state.target_params['w'], atol=1e-6
    )
  vectors = worker.vectors()
  wanted = started.trainer.flatten(expected[-1])
  for own, other in zip(
    jax.tree.leaves(vectors), jax.tree.leaves(wanted), strict=True
  ):
    np.testing.assert_allclose(own, other, atol=1e-6)
  metrics = board.metrics()
  assert metrics['asynchronous/staleness_mean'] == 0
  assert metrics['asynchronous/shards_cpu_s'] > 0


@pytest.mark.parametrize('count', [1, 2, 7, 9])
def test_slices_are_as_equal_as_possible(count):
  sizes = [part.size for part in server.split(np.empty(7), count)]
  assert sum(sizes) == 7 and max(sizes) - min(sizes) <= 1


def test_there_is_at_least_one_shard():
  config = shards.make_config(asynchronous__shards=0)
  with pytest.raises(ValueError, match=r'asynchronous\.shards=0: give'):
    layout.check(config)


def test_versions_go_on_from_those_of_a_resumed_run(serve):
  _, (worker,), (board,) = serve(shards.make_config(), 2, version=10)
  assert worker.read().version == board.version() == 10
  assert _apply(worker, 2).version == board.version() == 12


def test_gradients_that_are_too_old_are_discarded(serve):
  config = shards.make_config(asynchronous__max_staleness=2)
  _, (quick, slow), boards = serve(config, 2, num_workers=2)
  for age, is_stale in (2, False), (3, True):
    old = slow.read()
    new = _apply(quick, age)
    slow.apply(np.ones(shards.SIZE, np.float32), old.version, 0.5)
    actual = slow.read()
    assert actual.version == new.version + (not is_stale)
    assert np.array_equal(actual.params, new.params) == is_stale
    assert [board.row.stale for board in boards] == [0, is_stale]
    quick.read()
    assert quick.read().version == actual.version
  metrics = boards[0].metrics()
  assert metrics['asynchronous/stale_gradients'] == 1
  assert metrics['asynchronous/discarded_share'] == 1 / 7
  # Of six that were applied, one was two versions old.
  assert metrics['asynchronous/staleness_mean'] == 2 / 6


def test_a_shard_that_is_started_again_goes_on(serve):
  def restart():
    if 1 not in started.all:
      started.start(1)

  started, (worker,), (board,) = serve(
    shards.make_config(), 2, check=lambda: restart()
  )
  before = _apply(worker, 2)
  started.kill(1)
  after = _apply(worker, actual=before)
  assert board.row.lost == 1
  assert after.version == board.version() == before.version + 1
  # The first shard has the gradient, the second is as it was.
  is_new = after.params != before.params
  assert is_new[:4].any() and not is_new[4:].any()
  last = _apply(worker, 2)
  assert last.version == board.version() == after.version + 2
  assert (last.params[4:] != before.params[4:]).any()
  metrics = board.metrics()
  assert metrics['asynchronous/lost_gradients'] == 1
  assert metrics['asynchronous/staleness_mean'] == 0


def test_all_workers_know_the_version_of_a_new_shard(serve):
  started, (old, other), (board, _) = serve(shards.make_config(), num_workers=2)
  other.read()
  actual = _apply(old, 4)
  started.kill(0)
  started.start(0)
  assert other.read().version == board.version() == 4
  # As does a worker that begins now.
  new = started.worker(board).read()
  assert new.version == 4
  np.testing.assert_array_equal(new.params, actual.params)


def test_nobody_waits_for_a_shard_that_cannot_be_started(serve):
  def check():
    if 1 not in started.all:
      raise coordinator.WorkerFailed('It has no memory.')

  started, (worker,), _ = serve(shards.make_config(), 2, check=check)
  worker.read()
  started.kill(1)
  with pytest.raises(coordinator.WorkerFailed, match='It has no memory'):
    worker.read()


@pytest.mark.parametrize(
  ('version', 'value', 'sentence'),
  [
    (0, np.nan, 'the gradient step is not finite'),
    (9, 1.0, 'version 9 is later than 0'),
  ],
)
def test_rejected_gradients_change_nothing(serve, version, value, sentence):
  started, (worker, other), _ = serve(shards.make_config(), num_workers=2)
  before = worker.read()
  worker._shards[0].reply['version'] = version
  gradient = np.full(shards.SIZE, value, np.float32)
  with pytest.raises(coordinator.WorkerFailed, match=sentence):
    worker.apply(gradient, version, shards.LEARNING_RATE)
  after = other.read()
  assert after.version == 0
  np.testing.assert_array_equal(after.params, before.params)
  assert started.all[0]
