"""What every backend must do whatever its tables: closing, threads, reset."""

import itertools
import threading

import numpy as np
import pytest

from seedrl_jax import replay


@pytest.fixture(params=['fifo', 'prioritized'], name='kind')
def kind_fixture(request, toy):
  return toy.queue() if request.param == 'fifo' else toy.items(max_size=4)


def test_a_block_is_inserted_once(make_store, toy, kind):
  store = make_store(kind)
  writer = store.writer('t')
  block = writer.allocate()
  writer.insert(block)
  with pytest.raises(ValueError, match='allocate'):
    writer.insert(block)
  with pytest.raises(ValueError, match='allocate'):
    writer.insert(store.sampler('t', 2).sample(0).blocks[0])


def test_close_wakes_every_waiter(make_store, toy, threads):
  limited = toy.items(samples_per_insert=1.0)
  queue = replay.TableConfig.queue('q', 2)
  store = make_store(limited, queue)
  toy.insert(store, 'q', [0, 1])
  toy.insert(store, 't', [0, 1])
  sampler = store.sampler('t', 16)
  other = store.sampler('q', 2)
  other.sample(0)
  for _ in range(3):
    threads.start(sampler.sample)
    threads.start(other.sample)
  threads.until(
    lambda: all(i.waiting_samplers == 3 for i in store.info().values())
  )
  store.close()
  errors = threads.join()
  assert [type(e) for e in errors] == [replay.StoreClosed] * 6


def test_close_wakes_waiting_writers(make_store, toy, threads):
  store = make_store(toy.queue(2))
  toy.insert(store, 't', [0, 1])
  for _ in range(3):
    threads.start(lambda: toy.insert(store, 't', [2, 3], timeout=None))
  threads.until(lambda: store.info()['t'].waiting_writers == 3)
  store.close()
  assert [type(e) for e in threads.join()] == [replay.StoreClosed] * 3


def test_nothing_passes_a_closed_store(make_store, toy, kind):
  store = make_store(kind)
  writer, sampler = store.writer('t'), store.sampler('t', 2)
  block = writer.allocate()
  toy.insert(store, 't', [0, 1])
  sample = sampler.sample(0)
  store.close()
  store.close()
  for call in (writer.allocate, lambda: writer.insert(block), sampler.sample):
    with pytest.raises(replay.StoreClosed):
      call()
  sample.release()


def test_a_time_out_that_passes(make_store, kind):
  store = make_store(kind)
  with pytest.raises(replay.RateLimited, match=r'within 0\.001 s'):
    store.sampler('t', 2).sample(timeout=0.001)
  assert store.info()['t'].waiting_samplers == 0


def test_unknown_tables_are_refused(make_store, toy):
  store = make_store(toy.queue())
  calls = [
    lambda: store.writer('x'),
    lambda: store.sampler('x', 2),
    lambda: store.reset('x'),
    lambda: store.update_priorities('x', np.zeros(1), np.zeros(1)),
  ]
  for call in calls:
    with pytest.raises(ValueError, match='no table x'):
      call()


def test_info_counts_unrolls(make_store, toy, kind):
  store = make_store(kind)
  assert store.info()['t'].samples_per_insert == 0
  toy.insert(store, 't', [0, 1])
  toy.insert(store, 't', [2, 3])
  store.sampler('t', 2).sample(0)
  info = store.info()['t']
  assert (info.inserts, info.samples, info.config) == (4, 2, kind)
  assert info.samples_per_insert == 0.5


def test_reset_empties_and_lets_writers_go_on(make_store, toy, threads):
  store = make_store(toy.queue(2))
  toy.insert(store, 't', [0, 1])
  threads.start(lambda: toy.insert(store, 't', [2, 3], timeout=None))
  threads.until(lambda: store.info()['t'].waiting_writers == 1)
  store.reset('t')
  assert threads.join() == []
  info = store.info()['t']
  assert (info.size, info.inserts, info.samples) == (2, 2, 0)
  assert toy.numbers(store.sampler('t', 2).sample(0)) == [2, 3]


def test_reset_of_a_prioritized_table(make_store, toy):
  store = make_store(toy.items(max_size=4))
  for _ in range(4):
    toy.insert(store, 't', [0, 1])
  store.reset('t')
  assert store.info()['t'].size == 0
  toy.insert(store, 't', [2, 3])
  assert set(toy.numbers(store.sampler('t', 20).sample(0))) == {2, 3}


def test_queue_under_threads_passes_each_unroll_once(make_store, toy, threads):
  store = make_store(toy.queue(12))
  writers, samplers, per_writer = 3, 2, 400
  batches = writers * per_writer // 2 // samplers
  got: list[int] = []

  def write(index: int) -> None:
    writer = store.writer('t')
    for i in range(per_writer):
      block = writer.allocate()
      # Above one byte: only leaves of four bytes are looked at.
      first = (index * per_writer + i) * 2
      block.unroll.env_id[:] = first, first + 1
      block.unroll.steps.reward[:] = block.unroll.env_id
      writer.insert(block)

  def read() -> None:
    sampler = store.sampler('t', 4)
    for _ in range(batches):
      sample = sampler.sample()
      for block in sample.blocks:
        ids = block.unroll.env_id.tolist()
        np.testing.assert_array_equal(block.unroll.steps.reward, [ids] * 3)
        got.extend(ids)
      sample.release()

  for index in range(writers):
    threads.start(lambda index=index: write(index))
  for _ in range(samplers):
    threads.start(read)
  assert threads.join() == []
  assert sorted(got) == list(range(writers * per_writer * 2))
  assert store.info()['t'].size == 0


def test_prioritized_under_threads_keeps_ratio_and_contents(
  make_store, toy, threads
):
  # A small table, so that slots are used again while others read.
  config = toy.items(max_size=16, samples_per_insert=2.0, min_size=8)
  store = make_store(config)
  stop = threading.Event()
  seen: set[int] = set()

  def write(index: int) -> None:
    for i in itertools.count():
      if stop.is_set():
        return
      numbers = [(index + 3 * i) % 251, (index + 3 * i + 1) % 251]
      toy.insert(store, 't', numbers, [1.0, 2.0], timeout=None)

  def read() -> None:
    sampler = store.sampler('t', 6, num_blocks=2)
    for _ in range(250):
      sample = sampler.sample()
      seen.update(toy.numbers(sample))
      store.update_priorities('t', sample.keys, sample.priorities + 0.5)
      sample.release()

  def guard(function) -> None:
    try:
      function()
    except replay.StoreClosed:
      assert stop.is_set()

  for index in range(3):
    threads.start(lambda index=index: guard(lambda: write(index)))
  readers = type(threads)()
  for _ in range(2):
    readers.start(read)
  assert readers.join() == []
  stop.set()
  info = store.info()['t']
  store.close()
  assert threads.join() == []
  assert info.samples == 2 * 250 * 6
  debt = (info.inserts - 8) * 2.0 - info.samples
  assert abs(debt) <= (2 * 2.0 + 6) / 2
  assert info.size <= 16
  assert len(seen) > 100


def test_an_interrupted_store_can_still_be_saved(
  make_store, toy, kind, tmp_path
):
  store = make_store(kind)
  toy.insert(store, 't', [0, 1])
  toy.insert(store, 't', [2, 3])
  writer, sampler = store.writer('t'), store.sampler('t', 2)
  sample = sampler.sample(0)
  block = writer.allocate()
  store.interrupt()
  for call in (
    writer.allocate,
    lambda: writer.insert(block),
    sampler.sample,
    lambda: store.sampler('t', 2).sample(),
  ):
    with pytest.raises(replay.StoreClosed):
      call()
  sample.release()
  path = str(tmp_path / 'replay')
  store.checkpoint(path)
  info = store.info()['t']
  store.close()
  other = make_store(kind)
  other.restore(path)
  restored = other.info()['t']
  assert (restored.size, restored.inserts) == (info.size, info.inserts)


def test_an_interrupted_store_still_takes_priorities(make_store, toy, tmp_path):
  path = str(tmp_path / 'replay')
  store = make_store(toy.items())
  toy.insert(store, 't', [0, 1])
  sample = store.sampler('t', 20).sample(300.0)
  store.interrupt()
  # Of the last update, which the end of a run overtakes.
  store.update_priorities('t', sample.keys, np.full(20, 4.0))
  store.checkpoint(path)
  other = make_store(toy.items())
  other.restore(path)
  np.testing.assert_array_equal(
    other.sampler('t', 20).sample(300.0).priorities, 4.0
  )
