"""Tests a worker's side of a parameter server, with shards in this process."""

import contextlib
import functools
import pathlib

import grpc
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax.agents import base
from seedrl_jax.hosts import coordinator
from seedrl_jax.workers import board as board_lib
from seedrl_jax.workers import server, shard, wire
from tests.actors import certificates
from tests.hosts import ports
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
def opened():
  with contextlib.ExitStack() as stack:
    yield stack


@pytest.fixture
def serve(opened, tmp_path):
  """Returns a function that starts shards and connects workers with them."""

  def make(config, count=1, num_workers=1, version=0, **kwargs):
    started = shards.Shards(tmp_path, config, count, version)
    opened.callback(started.close)
    first = board_lib.Board(num_workers, version=version)
    boards = [first] + [
      board_lib.Board(num_workers, i, first.fd) for i in range(1, num_workers)
    ]
    workers = [started.worker(board, **kwargs) for board in boards]
    for worker in workers:
      opened.callback(worker.close)
    return started, workers, boards

  return make


def _apply(worker, times=1, found=None):
  """Applies a worker's gradients; returns what it then reads."""
  found = found or worker.read()
  for _ in range(times):
    gradient = shards.gradient(found.params, found.target)
    worker.apply(gradient, found.version, shards.LEARNING_RATE)
    found = worker.read()
  return found


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
    found = _apply(worker)
    assert found.version == board.version() == number
    np.testing.assert_allclose(found.params, state.params['w'], atol=1e-6)
    # Of every second update.
    np.testing.assert_allclose(
      found.target, state.target_params['w'], atol=1e-6
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
  sizes = [part.stop - part.start for part in server.slices(7, count)]
  assert sum(sizes) == 7 and max(sizes) - min(sizes) <= 1


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
    found = slow.read()
    assert found.version == new.version + (not is_stale)
    assert np.array_equal(found.params, new.params) == is_stale
    assert [board.own.stale for board in boards] == [0, is_stale]
    quick.read()
    assert quick.read().version == found.version
  metrics = boards[0].metrics()
  assert metrics['asynchronous/stale_gradients'] == 1
  assert metrics['asynchronous/discarded_share'] == 1 / 7
  # Of six that were applied, one was two versions old.
  assert metrics['asynchronous/staleness_mean'] == 2 / 6


def test_a_shard_that_is_started_again_goes_on_from_its_file(
  serve, monkeypatch
):
  ask = server._Connection.ask_until_back

  def start_and_ask(*args):
    started.start(1)
    return ask(*args)

  monkeypatch.setattr(server._Connection, 'ask_until_back', start_and_ask)
  started, (worker,), (board,) = serve(shards.make_config(), 2)
  saved = _apply(worker, 3)
  started.all[1].save()
  before = _apply(worker, 2)
  started.kill(1)
  after = _apply(worker, found=before)
  assert board.own.lost == 1
  assert after.version == board.version() == before.version + 1
  first, second = server.slices(shards.SIZE, 2)
  # The first shard has the gradient, the second is as it was saved.
  assert not np.array_equal(after.params[first], before.params[first])
  np.testing.assert_array_equal(after.params[second], saved.params[second])
  # On its way to the version of the worker it has passed a multiple of 2.
  assert not np.array_equal(after.target[second], saved.target[second])
  last = _apply(worker, 2)
  assert last.version == board.version() == after.version + 2
  assert not np.array_equal(last.params[second], saved.params[second])
  metrics = board.metrics()
  assert metrics['asynchronous/lost_gradients'] == 1
  assert metrics['asynchronous/staleness_mean'] == 0


def test_a_call_that_an_ending_shard_drops_is_lost(serve, monkeypatch):
  def drop(answer, security):
    def handle(data, context):
      context.abort(grpc.StatusCode.CANCELLED, 'The server ends.')

    return grpc.unary_unary_rpc_method_handler(handle)

  monkeypatch.setattr(shard, '_handler', drop)
  _, (worker,), _ = serve(shards.make_config())
  (connection,) = worker._connections
  assert connection.answer(connection.call(wire.EXCHANGE, b'')) is None


def test_the_runs_version_never_goes_back(serve):
  started, (old, other), (board, _) = serve(shards.make_config(), num_workers=2)
  other.read()
  assert _apply(old, 4).version == 4
  started.kill(0)
  started.start(0)
  # All updates are lost, and of the two workers one does not know of them.
  other.read()
  assert board.version() == 4
  assert _apply(old).version >= 5
  # Neither does a worker that begins now.
  started.kill(0)
  started.start(0)
  assert started.worker(board).read().version == board.version() >= 5


def test_a_shard_that_stays_away_is_reported(serve):
  config = shards.make_config(asynchronous__patience=0.1)
  started, (worker,), _ = serve(config)
  started.kill(0)
  sentence = r'Shard 0 of the parameter server, at unix:.*/0.sock, has not'
  for call in worker.read, worker.vectors:
    with pytest.raises(coordinator.WorkerFailed, match=sentence):
      call()


def test_nobody_waits_for_a_shard_that_cannot_be_started(serve, monkeypatch):
  monkeypatch.setattr(server, '_LOOK_SECONDS', 0.01)

  class Parent(server.ServerParameters):
    def check(self):
      if 1 not in started.all:
        raise coordinator.WorkerFailed('It has no memory.')

  started, (worker,), _ = serve(shards.make_config(), 2, kind=Parent)
  worker.read()
  started.kill(1)
  with pytest.raises(coordinator.WorkerFailed, match='It has no memory'):
    worker.read()


def _secure_config(folder: pathlib.Path, token: str):
  certificate, key = certificates.make(folder)
  file = folder / token
  file.write_text(token)
  return shards.make_config(
    actors__tls_certificate=str(certificate),
    actors__tls_key=str(key),
    actors__token_file=str(file),
    asynchronous__addresses=tuple(
      f'127.0.0.1:{ports.free()}' for _ in range(2)
    ),
  )


def test_shards_on_ports_have_tls_and_a_token(serve, tmp_path):
  config = _secure_config(tmp_path, 'secret')
  started, (worker,), (board,) = serve(config)
  assert _apply(worker, 2).version == 2
  other = config.copy_and_resolve_references()
  file = tmp_path / 'other'
  file.write_text('wrong')
  other.actors.token_file = str(file)
  stranger = started.worker(board, other)
  sentence = 'refuses a call: the token is not that of the run.'
  with pytest.raises(coordinator.WorkerFailed, match=sentence):
    stranger.read()
  stranger.close()


def test_other_certificates_are_not_trusted(serve, tmp_path):
  config = _secure_config(tmp_path, 'secret')
  started, _, (board,) = serve(config)
  folder = tmp_path / 'other'
  folder.mkdir()
  other = config.copy_and_resolve_references()
  certificate, key = certificates.make(folder)
  other.actors.tls_certificate = str(certificate)
  other.actors.tls_key = str(key)
  other.asynchronous.patience = 0.1
  stranger = started.worker(board, other)
  with pytest.raises(coordinator.WorkerFailed, match='has not answered for'):
    stranger.read()
  stranger.close()
