"""The store on Reverb beyond the contract: threads, losses, shared steps."""

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.replay import base as replay
from seedrl_jax.replay.reverb import errors
from seedrl_jax.replay.reverb.client import sampler, server_rules, store
from tests.patience import PATIENCE, wait_until
from tests.replay.conftest import make_own_server

_WIDTH = 2


@pytest.fixture(name='make')
def make_fixture(
  reverb_servers, toy, monkeypatch
) -> Iterator[Callable[..., store.ReverbStore]]:
  """Makes stores of toy unrolls; closes them afterwards."""
  with contextlib.ExitStack() as stack:

    def make(config, spec=None, ahead=1, overlap=1) -> store.ReverbStore:
      monkeypatch.setattr(sampler, '_AHEAD', ahead)
      monkeypatch.setattr(store, '_FLUSH_SECONDS', PATIENCE)

      location = make_own_server(
        reverb_servers, [server_rules.server_rules(config, _WIDTH, 4)]
      )
      new_store = store.ReverbStore(
        [config], spec or toy.spec(), _WIDTH, location, overlap
      )
      stack.callback(new_store.close)
      return new_store

    yield make


def _reverb_threads() -> set[threading.Thread]:
  return {t for t in threading.enumerate() if t.name.startswith('reverb-')}


def test_a_server_that_does_not_answer_is_closed(toy):
  closed = []

  class Mute:
    @property
    def link(self):
      return self

    def server_info(self):
      raise errors.ServerLost('nobody there')

    def close(self):
      closed.append(True)

  with pytest.raises(errors.ServerLost):
    store.ReverbStore([toy.queue(4)], toy.spec(), _WIDTH, Mute())
  assert closed == [True]


@pytest.mark.parametrize('ahead', [0, 2])
def test_batches_are_drawn_ahead(make, toy, threads, ahead):
  new_store = make(toy.queue(16), ahead=ahead)
  for number in range(0, 16, _WIDTH):
    toy.insert(new_store, 't', [number, number + 1])
  drawing = new_store.table('t').sampler(4)
  assert toy.numbers(drawing.sample()) == [0, 1, 2, 3]
  wait_until(lambda: new_store.info()['t'].samples == 4 * (1 + ahead))
  for first in (4, 8, 12):
    numbers = toy.numbers(drawing.sample())
    assert numbers == list(range(first, first + 4))
  with pytest.raises(replay.RateLimited):
    drawing.sample(wait=False)


def test_no_draw_and_no_update_waits_until_the_server_has_priorities(
  make, toy, monkeypatch
):
  new_store = make(toy.items(priority_exponent=1.0), ahead=0)
  toy.insert(new_store, 't', [1, 2])
  mutate = new_store.location.link.mutate
  asked, answer = threading.Event(), threading.Event()

  def slow(*arguments: object) -> None:
    asked.set()
    assert answer.wait(PATIENCE)
    mutate(*arguments)

  monkeypatch.setattr(new_store.location.link, 'mutate', slow)
  drawing = new_store.table('t').sampler(4)
  seen: set[int] = set()
  while len(seen) < 2 or not asked.is_set():
    sample = drawing.sample()
    numbers = np.array(toy.numbers(sample))
    sample.update_priorities(np.where(numbers == 1, 0.0, 3.0))
    seen |= set(numbers.tolist())
  # The server still has the initial ones.
  np.testing.assert_array_equal(drawing.sample().priorities, 1.0)
  answer.set()
  new_store.flush()
  sample = drawing.sample()
  assert toy.numbers(sample) == [2] * 4
  np.testing.assert_array_equal(sample.priorities, 3.0)


def test_a_failure_to_send_priorities_reaches_whoever_comes_next(
  make, toy, monkeypatch
):
  new_store = make(toy.items(), ahead=0)

  def refuse(*arguments: object) -> None:
    raise errors.RequestRefused('no table t')

  monkeypatch.setattr(new_store.location.link, 'mutate', refuse)
  update = functools.partial(
    new_store.table('t').update_priorities, np.ones(1, np.uint64), np.ones(1)
  )
  update()
  for call in (new_store.flush, update):
    with pytest.raises(errors.RequestRefused, match='no table t'):
      call()
  new_store.location.link.close()
  with pytest.raises(replay.StoreClosed):
    update()


def test_a_queue_of_other_blocks_is_refused(make, toy, tmp_path, monkeypatch):
  path = str(tmp_path / 'replay')
  make(toy.queue()).checkpoint(path)
  monkeypatch.setattr(sys.modules[__name__], '_WIDTH', 1)
  with pytest.raises(replay.CheckpointError, match='blocks of 2 unrolls'):
    make(toy.queue()).restore(path)


def test_priorities_that_nothing_draws_by_are_not_sent(make, toy, monkeypatch):
  new_store = make(toy.items('uniform'), ahead=0)
  toy.insert(new_store, 't', [1, 2])
  sent: list[object] = []
  monkeypatch.setattr(
    new_store.location.link, 'mutate', lambda *arguments: sent.append(arguments)
  )
  new_store.table('t').sampler(2).sample().update_priorities(np.full(2, 3.0))
  new_store.flush()
  assert not sent


@pytest.mark.parametrize('kind', ['queue', 'items'])
def test_close_ends_every_thread(make, toy, threads, kind):
  before = _reverb_threads()
  new_store = make(toy.queue() if kind == 'queue' else toy.items())
  toy.insert(new_store, 't', [1, 2])
  sample = new_store.table('t').sampler(2).sample()
  sample.update_priorities(np.ones(2))
  empty = new_store.table('t').sampler(4)
  if kind == 'queue':
    threads.start(empty.sample)
    wait_until(lambda: new_store.info()['t'].waiting_samplers == 1)
  names = {thread.name.rsplit('-', 1)[0] for thread in _reverb_threads()}
  assert {'reverb-encode', 'reverb-sample'} <= names
  # Small unrolls need no threads of the codec.
  assert ('reverb' in names) == (kind == 'queue')
  new_store.close()
  assert all(isinstance(e, replay.StoreClosed) for e in threads.join())
  # Threads that gRPC holds up end by themselves.
  wait_until(lambda: _reverb_threads() <= before)
  new_store.close()


@pytest.mark.parametrize('kind', ['queue', 'items'])
def test_an_unroll_of_many_megabytes(make, toy, kind):
  spec = toy.spec()
  shape = (3, 11, 1000, 1000)
  spec.steps.observation['image'] = types.ArraySpec(shape, np.dtype(np.uint8))
  new_store = make(
    toy.queue() if kind == 'queue' else toy.items(), spec, ahead=0
  )
  writer = new_store.table('t')
  block = writer.allocate()
  toy.fill(block, [1, 2])
  # 66 MB, incompressible.
  noise = np.random.default_rng(1).integers(0, 256, 66_000_000, np.uint8)
  block.unroll.steps.observation['image'].reshape(-1)[:] = noise
  kept = np.swapaxes(block.unroll.steps.observation['image'], 0, 1).copy()
  writer.insert(block)
  sample = new_store.table('t').sampler(_WIDTH).sample()
  (drawn,) = sample.blocks
  for column, env_id in enumerate(drawn.unroll.env_id.tolist()):
    image = drawn.unroll.steps.observation['image'][:, column]
    np.testing.assert_array_equal(image, kept[env_id - 1])
  sample.release()
