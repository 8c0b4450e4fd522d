"""Admission of inserts and samples by the client's counts."""

import pytest

from seedrl_jax.replay import base as replay
from seedrl_jax.replay import table_configs
from seedrl_jax.replay.reverb.client import client_rate_limiter

_WIDTH = 2


def _items(**rules) -> client_rate_limiter.ClientReplayLimiter:
  rules = {'max_size': 100, 'samples_per_insert': 0.0, **rules}
  config = table_configs.ReplayConfig('t', 'prioritized', **rules)
  return client_rate_limiter.ClientReplayLimiter(config, _WIDTH)


@pytest.fixture(name='queue')
def queue_fixture() -> client_rate_limiter.ClientQueueLimiter:
  return client_rate_limiter.ClientQueueLimiter(
    table_configs.QueueConfig('t', 4)
  )


def _settled(
  counts: client_rate_limiter.ClientRateLimiter, inserts: int
) -> client_rate_limiter.ClientRateLimiter:
  for _ in range(inserts // _WIDTH):
    counts.admit_insert(_WIDTH)
  counts.acknowledged(inserts)
  return counts


def _is_full(counts: client_rate_limiter.ClientRateLimiter) -> bool:
  return not counts._can_insert(2)


def _is_refused(counts, n: int) -> bool:
  try:
    counts.admit_sample(n, wait=False)
  except replay.RateLimited:
    return True
  return False


def test_a_full_queue_refuses_inserts_until_a_batch_is_drawn(queue):
  queue.admit_insert(2)
  queue.admit_insert(2)
  assert _is_full(queue)
  queue.admit_sample(4, wait=False)
  queue.admit_insert(2)


def test_a_queue_gives_only_whole_batches(queue):
  queue.admit_insert(2)
  with pytest.raises(replay.RateLimited, match='sample from table t'):
    queue.admit_sample(4, wait=False)
  queue.admit_insert(2)
  queue.admit_sample(4, wait=False)
  assert _is_refused(queue, 4)


def test_items_wait_for_the_least_size():
  counts = _items(min_size=4)
  counts.widen(2)
  counts.admit_insert(2)
  assert _is_refused(counts, 2)
  counts.admit_insert(2)
  counts.admit_sample(2, wait=False)


def test_items_keep_their_ratio_on_both_sides():
  counts = _items(min_size=4, samples_per_insert=1.0)
  # The debt should be 4, plus or minus 2: a block and a batch.
  counts.widen(2)
  for _ in range(3):
    counts.admit_insert(2)
  assert _is_full(counts)
  counts.admit_sample(2, wait=False)
  counts.admit_sample(2, wait=False)
  assert _is_refused(counts, 2)
  counts.admit_insert(2)


def test_items_that_may_be_drawn_once_run_out_before_they_are_delivered():
  counts = _items(max_times_sampled=1)
  counts.admit_insert(2)
  counts.admit_sample(2, wait=False)
  assert _is_refused(counts, 2)
  counts.delivered(2, times_sampled=[1, 1])
  assert counts.info().size == 0
  assert _is_refused(counts, 2)
  counts.admit_insert(2)
  counts.admit_sample(2, wait=False)


def test_a_batch_in_flight_that_empties_the_table_admits_inserts():
  counts = _items(
    min_size=4,
    max_size=6,
    samples_per_insert=1.0,
    tolerance=1.0,
    max_times_sampled=1,
  )
  counts.widen(2)
  for _ in range(4):
    counts.admit_insert(2)
  for _ in range(2):
    assert _is_full(counts)
    counts.admit_sample(2, wait=False)
    counts.admit_insert(2)
  # The server may hold 3 unrolls now, and not give the fourth sample.
  assert not _is_full(counts)


def test_the_oldest_item_gives_way_in_a_full_table():
  counts = _items(max_size=3)
  counts.admit_insert(2)
  counts.admit_insert(2)
  assert counts.info().size == 3
  assert counts.info().inserts == 4


@pytest.mark.parametrize('make', ['queue', 'items'])
def test_there_is_no_version_while_anything_is_under_way(make, queue):
  counts = queue if make == 'queue' else _items()
  first = counts.version
  assert first is not None
  counts.admit_insert(4)
  assert counts.version is None
  counts.acknowledged(2)
  assert counts.version is None
  counts.acknowledged(2)
  second = counts.version
  assert second not in (None, first)
  counts.admit_sample(2, wait=False)
  assert counts.version is None
  counts.delivered(2, times_sampled=[1, 1])
  assert counts.version not in (None, first, second)


def test_what_is_acknowledged_twice_counts_once(queue):
  queue.admit_insert(2)
  queue.acknowledged(2)
  queue.acknowledged(2)
  queue.admit_insert(2)
  assert queue.version is None


def test_a_table_is_young_while_much_of_it_is_under_way():
  counts = _settled(_items(), 20)
  assert not counts.is_young
  counts.admit_insert(2)
  assert not counts.is_young
  counts.admit_insert(2)
  assert counts.is_young


def test_correction_takes_over_what_others_did(queue):
  _settled(queue, 4)
  version = queue.version
  assert queue.correct(10, 8, 2, version)
  version = queue.version
  assert not queue.correct(10, 8, 2, version)
  info = queue.info()
  assert (info.inserts, info.samples, info.size) == (10, 8, 2)
  queue.admit_insert(2)
  assert _is_full(queue)


def test_correction_ignores_counts_from_before_the_last_change(queue):
  version = queue.version
  _settled(queue, 4)
  assert not queue.correct(0, 0, 0, version)
  info = queue.info()
  assert (info.inserts, info.size) == (4, 4)


def test_a_new_server_gets_what_is_under_way_again(queue):
  queue.admit_insert(2)
  queue.admit_insert(2)
  queue.acknowledged(2)
  queue.admit_sample(2, wait=False)
  # The acknowledged block is there; the other is sent again.
  queue.restart(inserts=2, samples=0, size=2, undrawn=2)
  info = queue.info()
  assert (info.inserts, info.samples, info.size) == (4, 2, 2)


def test_a_queue_that_came_back_empty_first_pays_what_is_to_be_drawn(queue):
  _settled(queue, 4)
  queue.admit_sample(4, wait=False)
  queue.restart(inserts=0, samples=0, size=0, undrawn=4)
  assert queue.info().size == 0
  queue.admit_insert(2)
  queue.admit_insert(2)
  assert _is_refused(queue, 2)
  queue.admit_insert(2)
  queue.admit_sample(2, wait=False)


def test_correction_lets_those_pass_who_wait(queue, threads):
  _settled(queue, 4)
  threads.start(lambda: queue.admit_insert(2))
  threads.until(lambda: queue.waiting)
  queue.correct(4, 4, 0, queue.version)
  assert threads.join() == []
  assert not queue.waiting


def test_info_prefers_the_servers_size_of_items_only(queue):
  counts = _settled(_items(max_size=10), 4)
  counts.admit_insert(2)
  assert counts.info().size == 6
  assert counts.info((3, 4)).size == 5
  # The server has what is in flight, but its acknowledgement is still to come.
  assert counts.info((6, 4)).size == 6
  assert counts.info((10, 4)).size == 10
  assert _settled(queue, 4).info((1, 4)).size == 4


def test_info_misses_nothing_that_is_acknowledged_while_the_server_is_asked():
  counts = _settled(_items(max_size=10), 4)
  counts.admit_insert(2)
  before = counts.num_acknowledged
  counts.acknowledged(2)
  assert counts.info((4, before)).size == 6
  # Others removed some: the server's 3, and 2 that it may not have counted.
  assert counts.info((3, before)).size == 5
  assert counts.info((3, counts.num_acknowledged)).size == 3


def test_info_says_who_waits(queue, threads):
  threads.start(lambda: queue.admit_sample(2))
  threads.until(lambda: queue.info().waiting_samplers == 1)
  assert queue.info().waiting_writers == 0
  queue.admit_insert(2)
  assert threads.join() == []
  assert queue.info().sampler_wait_seconds > 0


def test_close_ends_waits_now_and_later(queue, threads):
  threads.start(lambda: queue.admit_sample(2))
  threads.until(lambda: queue.waiting)
  queue.close()
  (error,) = threads.join()
  assert isinstance(error, replay.StoreClosed)
  with pytest.raises(replay.StoreClosed):
    queue.admit_insert(2)
  with pytest.raises(replay.StoreClosed):
    queue.admit_sample(2)


def test_counts_are_trusted_once_nothing_moves():
  counts = _items()
  counts.admit_insert(2)
  assert counts.version is None
  assert counts.stalled_version(5, 1) is None
  # The server's counts changed, then ours.
  assert counts.stalled_version(6, 1) is None
  counts.admit_insert(2)
  assert counts.stalled_version(6, 1) is None
  version = counts.stalled_version(6, 1)
  assert version is not None
  assert counts.correct(6, 1, 6, version)


@pytest.mark.parametrize('counted', [0, 4])
def test_a_late_acknowledgement_is_not_counted_twice(queue, counted):
  queue.admit_insert(2)
  queue.admit_insert(2)
  queue.stalled_version(counted, 0)
  version = queue.stalled_version(counted, 0)
  # It is unknown whether the server has counted both.
  assert not queue.correct(counted, 0, counted, version)
  info = queue.info()
  assert (info.inserts, info.samples, info.size) == (4, 0, 4)


def test_a_late_sample_is_not_counted_twice(queue):
  _settled(queue, 4)
  queue.admit_sample(4, wait=False)
  queue.stalled_version(4, 4)
  version = queue.stalled_version(4, 4)
  # The server has drawn them; they are on their way.
  assert not queue.correct(4, 4, 0, version)
  info = queue.info()
  assert (info.inserts, info.samples, info.size) == (4, 4, 0)


def test_an_exhausted_item_leaves_once():
  counts = _settled(_items(max_times_sampled=1), 4)
  counts.admit_sample(2, wait=False)
  counts.stalled_version(4, 2)
  version = counts.stalled_version(4, 2)
  assert not counts.correct(4, 2, 2, version)
  counts.delivered(2, times_sampled=[1, 1])
  assert counts.info().size == 2


@pytest.mark.parametrize('change', ['acknowledged', 'delivered'])
def test_an_answer_is_too_old_where_something_came_after_it(queue, change):
  _settled(queue, 4)
  queue.admit_sample(2, wait=False)
  queue.admit_insert(2)
  queue.stalled_version(4, 0)
  version = queue.stalled_version(4, 0)
  if change == 'acknowledged':
    queue.acknowledged(2)
  else:
    queue.delivered(2, times_sampled=[1, 1])
  assert not queue.correct(4, 0, 4, version)
  assert queue.info().inserts == 6


def test_tells_when_a_thread_begins_to_wait():
  told = []
  counts = client_rate_limiter.ClientQueueLimiter(
    table_configs.QueueConfig('queue', 4), lambda: told.append(1)
  )
  counts.admit_insert(4)
  assert told == []
  counts.admit_sample(4)
  with pytest.raises(replay.RateLimited):
    counts.admit_sample(4, wait=False)
  assert told == [1]
