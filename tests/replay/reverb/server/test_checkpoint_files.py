"""Tests of checkpoints that real servers write and load."""

import contextlib
import os
import pathlib
import shutil
import zlib

import pytest

from seedrl_jax.replay import base as replay
from seedrl_jax.replay.reverb.server import checkpoint_files, server
from tests.patience import PATIENCE
from tests.replay.reverb import shared_servers
from tests.replay.reverb.conftest import PlainClient, rules


@pytest.fixture(name='original', scope='module')
def original_fixture(reverb_servers, tmp_path_factory) -> pathlib.Path:
  """A checkpoint of 20 items, keys 1 to 20, after 5 samples."""
  path = tmp_path_factory.mktemp('reverb') / 'saved'
  with contextlib.closing(
    shared_servers.SharedServer(reverb_servers, [rules()])
  ) as up:
    up.start()
    with contextlib.closing(PlainClient(up.address)) as client:
      assert client.insert(range(1, 21)) == list(range(1, 21))
      assert len(client.sample(5)) == 5
      checkpoint_files.keep(client.checkpoint(), path)
  return path


@pytest.fixture(name='saved')
def saved_fixture(original, tmp_path) -> pathlib.Path:
  """A copy of `original` that a test may damage."""
  return shutil.copytree(original, tmp_path / 'saved')


@pytest.fixture(name='make_shared')
def make_shared_fixture(reverb_servers):
  """Makes servers, not started, in the process that all tests share."""
  with contextlib.ExitStack() as stack:

    def make(*tables):
      new_server = shared_servers.SharedServer(
        reverb_servers, tables or [rules()]
      )
      stack.callback(new_server.close)
      return new_server

    yield make


@pytest.fixture(name='restored')
def restored_fixture(make_shared, make_client, saved):
  """Restores `saved` under other rules; returns a client."""

  def restore(table):
    running = make_shared(table)
    running.start(str(saved))
    return make_client(running.address)

  return restore


def test_what_reverb_itself_does(make_shared, make_client):
  """Reverb's behaviour that we rely on; a release may change it."""
  running = make_shared()
  running.start()
  client = make_client(running.address)
  first = client.checkpoint()
  beside = pathlib.Path(first).with_name('0-something-else')
  beside.mkdir()
  second = client.checkpoint()
  assert [path.name for path in pathlib.Path(second).parent.iterdir()] == [
    os.path.basename(second)
  ]


def test_restored_table_has_all_rules_of_now(restored):
  now = rules(
    sampler='prioritized',
    priority_exponent=0.75,
    max_size=30,
    max_times_sampled=9,
    samples_per_insert=2.0,
    min_size_to_sample=3,
    min_diff=-50.0,
    max_diff=60.0,
  )
  info = restored(now).info()
  limiter = info.rate_limiter_info
  assert info.sampler_options.prioritized.priority_exponent == 0.75
  assert info.remover_options.fifo
  assert (info.max_size, info.max_times_sampled) == (30, 9)
  assert (limiter.samples_per_insert, limiter.min_size_to_sample) == (2.0, 3)
  assert (limiter.min_diff, limiter.max_diff) == (-50.0, 60.0)
  # 20 * 2 - 5 is within these bounds, so the counts are unchanged.
  assert limiter.insert_stats.completed == 20
  assert limiter.sample_stats.completed == 5
  assert info.current_size == 20


@pytest.mark.parametrize('ratio', [0.25, 100.0])
def test_neither_blocks_nor_runs_away(restored, ratio):
  # The saved debt under the new ratio is 20 * ratio - 5: 0 or 1995.
  width = 4 * ratio + 8
  centre = 6 * ratio
  client = restored(
    rules(
      samples_per_insert=ratio,
      min_size_to_sample=6,
      min_diff=centre - width,
      max_diff=centre + width,
    )
  )
  limit = int(2 * width)
  # Samples run ahead to the bound; then inserts allow more.
  drawn = len(client.sample(limit + 50))
  assert 0 < drawn <= limit
  assert client.insert([101]) == [101]
  more = len(client.sample(limit + 50))
  assert int(ratio) <= more + 1 and more <= ratio + 1


def test_too_few_inserts_for_the_new_rules_is_a_fresh_start(restored):
  client = restored(rules(min_size_to_sample=40, min_diff=30.0, max_diff=90.0))
  assert client.sample(1) == []
  assert client.insert(range(21, 61)) == list(range(21, 61))
  assert len(client.sample(100)) == 30
  assert client.info().rate_limiter_info.sample_stats.completed == 30


def test_a_smaller_queue_is_full_and_not_overfull(
  make_shared, make_client, tmp_path, threads
):
  def queue(size):
    return rules(
      sampler='fifo',
      max_size=size,
      max_times_sampled=1,
      min_diff=0.0,
      max_diff=float(size),
    )

  running = make_shared(queue(20))
  running.start()
  client = make_client(running.address)
  client.insert(range(1, 21))
  assert client.sample(2) == [1, 2]
  checkpoint_files.keep(client.checkpoint(), tmp_path / 'saved')

  smaller = make_shared(queue(4))
  smaller.start(str(tmp_path / 'saved'))
  client = make_client(smaller.address)
  info = client.info()
  limiter = info.rate_limiter_info
  ahead = limiter.insert_stats.completed - limiter.sample_stats.completed
  assert info.current_size == ahead == limiter.max_diff == 4
  got_in: list[int] = []
  threads.start(lambda: got_in.extend(client.insert([30])))
  # However late the insert arrives.
  drawn = client.sample(5, wait_ms=int(PATIENCE * 1000))
  assert drawn == [17, 18, 19, 20, 30]
  assert threads.join() == []
  assert got_in == [30]
  assert client.insert([31, 32, 33, 34]) == [31, 32, 33, 34]
  assert client.insert([35], timeout=0.2) == []


def test_items_sampled_often_enough_are_left_out(
  make_shared, make_client, tmp_path
):
  running = make_shared(rules(sampler='fifo'))
  running.start()
  client = make_client(running.address)
  client.insert([1, 2, 3])
  assert client.sample(2) == [1, 1]
  checkpoint_files.keep(client.checkpoint(), tmp_path / 'saved')

  # Reverb removes an item at the limit, not beyond it.
  now = make_shared(rules(max_times_sampled=2, sampler='fifo'))
  now.start(str(tmp_path / 'saved'))
  assert make_client(now.address).sample(5) == [2, 2, 3, 3]


def _remove(name):
  return lambda path: (path / name).unlink()


def _cut(name):
  return lambda path: os.truncate(path / name, (path / name).stat().st_size - 1)


def _replace(name, content):
  return lambda path: (path / name).write_bytes(content)


# No records, and hence no checkpoint, but a whole stream.
_NO_RECORDS = zlib.compress(b'no record' * 9)


@pytest.mark.parametrize(
  ('damage', 'words'),
  [
    (_remove('DONE'), 'is damaged .it was not written to its end.; use'),
    (_remove('chunks.tfrecord'), 'is damaged .*No such file'),
    (_cut('tables.tfrecord'), 'is damaged .tables.tfrecord is cut short'),
    (_cut('chunks.tfrecord'), 'is damaged .chunks.tfrecord is cut short'),
    (_replace('items.tfrecord', b'hello'), 'is damaged'),
    (_replace('items.tfrecord', _NO_RECORDS), 'is damaged'),
    (shutil.rmtree, ''),
  ],
  ids=range(7),
)
def test_damage_is_told_and_the_one_before_can_be_used(
  make_shared, make_client, saved, tmp_path, damage, words
):
  before = tmp_path / 'before'
  shutil.copytree(saved, before)
  damage(saved)
  running = make_shared()
  with pytest.raises(replay.CheckpointError, match=f'{saved} ?{words}') as e:
    running.start(str(saved))
  assert '\n' not in str(e.value)
  running.start(str(before))
  assert make_client(running.address).info().current_size == 20


def test_other_tables(make_shared, saved):
  with pytest.raises(replay.CheckpointError, match=r"\['t'\].*\['other'\]"):
    make_shared(rules('other')).start(str(saved))


def test_damage_that_only_reverb_sees_is_told_by_a_process(make_server, saved):
  _replace('chunks.tfrecord', _NO_RECORDS)(saved)
  running = make_server(start=False)
  with pytest.raises(replay.CheckpointError, match=f'{saved} cannot be loaded'):
    running.start(str(saved))


@pytest.mark.parametrize('collects', [True, False])
def test_what_a_dead_server_left(tmp_path, collects):
  left = tmp_path / '.server'
  for name in ('whole', 'unfinished'):
    (left / name).mkdir(parents=True)
  (left / 'whole/DONE').touch()
  (tmp_path / '.restored').mkdir()
  server.ReverbServer(
    'python', [], str(tmp_path), keep_checkpoints=collects
  )._prepare()
  assert list(left.iterdir()) == []
  expected = [tmp_path / 'whole'] * collects
  assert checkpoint_files.newest_first(tmp_path) == expected
  assert set(tmp_path.iterdir()) == {left, *expected}


def test_newest_first(tmp_path):
  assert checkpoint_files.newest_first(tmp_path / 'none') == []
  for age, name in enumerate(['b', 'c', 'a', '.restored', 'unfinished']):
    (tmp_path / name).mkdir()
    if name != 'unfinished':
      (tmp_path / name / 'DONE').touch()
      os.utime(tmp_path / name / 'DONE', (1000 + age, 1000 + age))
  paths = checkpoint_files.newest_first(tmp_path)
  assert [path.name for path in paths] == ['a', 'c', 'b']


def test_keep_replaces(tmp_path):
  for name in ('old', 'new'):
    (tmp_path / name).mkdir()
    (tmp_path / name / name).touch()
  checkpoint_files.keep(tmp_path / 'new', tmp_path / 'old')
  assert [path.name for path in tmp_path.iterdir()] == ['old']
  assert [path.name for path in (tmp_path / 'old').iterdir()] == ['new']
