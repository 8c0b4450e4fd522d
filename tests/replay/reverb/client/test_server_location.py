"""A store's own server, and an external one."""

import contextlib
import json
import pathlib
import threading
from collections.abc import Iterator

import pytest

from seedrl_jax.replay import base as replay
from seedrl_jax.replay.reverb import errors
from seedrl_jax.replay.reverb.client import (
  sampler,
  server_location,
  server_rules,
  store,
)
from seedrl_jax.replay.reverb.server import server as server_lib
from tests.patience import PATIENCE, wait_until
from tests.replay.reverb import shared_servers

_WIDTH = 2


class _Hosts:
  def __init__(self, factory, toy, stack: contextlib.ExitStack):
    self._factory = factory
    self._toy = toy
    self._stack = stack

  def server(self, config=None) -> shared_servers.SharedServer:
    new_store = shared_servers.SharedServer(self._factory, self._rules(config))
    new_store.start()
    self._stack.callback(new_store.close)
    return new_store

  def outside(self, address: str, config=None) -> store.ReverbStore:
    rules = self._rules(config)
    location = server_location.ExternalServer(address, rules, patience=0.0)
    return self._store(config, location)

  def own(self, begin_with: str | None = None) -> store.ReverbStore:
    """Returns a store with its own server, which counts its `starts`."""

    self._process = shared_servers.SharedServer(
      self._factory, self._rules(None)
    )
    location = server_location.OwnServer(self._process, PATIENCE, begin_with)
    return self._store(None, location)

  @property
  def starts(self) -> int:
    return self._process.starts

  def _rules(self, config) -> list[dict]:
    config = config or self._toy.queue()
    return [server_rules.server_rules(config, _WIDTH, 4)]

  def _store(self, config, location) -> store.ReverbStore:
    configs = [config or self._toy.queue()]
    new_store = store.ReverbStore(configs, self._toy.spec(), _WIDTH, location)
    self._stack.callback(new_store.close)
    return new_store


@pytest.fixture(name='hosts')
def hosts_fixture(reverb_servers, toy, monkeypatch) -> Iterator[_Hosts]:
  monkeypatch.setattr(sampler, '_AHEAD', 0)
  monkeypatch.setattr(store, '_FLUSH_SECONDS', PATIENCE)
  with contextlib.ExitStack() as stack:
    yield _Hosts(reverb_servers, toy, stack)


def test_outside_server_with_other_rules(hosts, toy):
  address = hosts.server(toy.items()).address
  with pytest.raises(errors.RequestRefused) as e:
    hosts.outside(address, toy.items(max_size=50))
  assert f'--config.replay.address={address}: ' in str(e.value)
  assert 'max_size is 100 there and 50 here' in str(e.value)


def test_stores_that_share_a_queue_take_each_unroll_once(hosts, toy, threads):
  address = hosts.server(toy.queue(8)).address
  got: list[int] = []

  def write(new_store: store.ReverbStore, first: int) -> None:
    for number in range(first, first + 40, _WIDTH):
      toy.insert(new_store, 't', [number, number + 1])

  def read(new_store: store.ReverbStore) -> None:
    drawing = new_store.table('t').sampler(4)
    for _ in range(10):
      got.extend(toy.numbers(drawing.sample()))

  for first in (0, 40):
    writer, reader = hosts.outside(address), hosts.outside(address)
    threads.start(lambda new_store=writer, first=first: write(new_store, first))
    threads.start(lambda new_store=reader: read(new_store))
  assert threads.join() == []
  assert sorted(got) == list(range(80))
  writer.close()
  # The server outlives its stores.
  assert reader.info()['t'].samples == 80


def test_outside_server_keeps_its_files_and_contents(
  hosts, toy, tmp_path, caplog
):
  server = hosts.server(toy.queue(8))
  new_store = hosts.outside(server.address)
  path = tmp_path / 'replay' / '1'
  toy.insert(new_store, 't', [1, 2])
  new_store.checkpoint(str(path))
  record = json.loads((path / 'store.json').read_text())
  assert record['server']['address'] == server.address
  saved = pathlib.Path(record['server']['path'])
  assert saved.is_dir() and saved != path
  # The server's owner starts it with these.
  toy.insert(new_store, 't', [3, 4])
  new_store.restore(str(path))
  assert new_store.info()['t'].size == 4
  assert [str(saved) in r.getMessage() for r in caplog.records].count(True) == 1
  server.start(str(saved))
  again = hosts.outside(server.address).table('t').sampler(2)
  assert toy.numbers(again.sample()) == [1, 2]


@pytest.mark.parametrize('kind', ['own', 'outside'])
@pytest.mark.parametrize('content', [None, '{'])
def test_a_folder_that_is_no_checkpoint_changes_nothing(
  hosts, toy, tmp_path, kind, content
):
  new_store = (
    hosts.own() if kind == 'own' else hosts.outside(hosts.server().address)
  )
  toy.insert(new_store, 't', [1, 2])
  path = tmp_path / 'replay'
  path.mkdir()
  if content is not None:
    (path / 'store.json').write_text(content)
  with pytest.raises(replay.CheckpointError, match='is damaged') as e:
    new_store.restore(str(path))
  assert str(path) in str(e.value) and '\n' not in str(e.value)
  assert toy.numbers(new_store.table('t').sampler(2).sample()) == [1, 2]


def test_close_ends_a_restart_under_way(hosts, monkeypatch, threads):
  new_store = hosts.own()
  process = hosts._process
  began, ended = threading.Event(), threading.Event()
  close = process.close

  def start(restore=None):
    del restore
    began.set()
    ended.wait()
    raise server_lib.ServerFailed('It was closed.')

  monkeypatch.setattr(process, 'start', start)
  monkeypatch.setattr(process, 'close', lambda: (ended.set(), close()))
  threads.start(new_store.table('t').sampler(2).sample)
  wait_until(lambda: new_store.info()['t'].waiting_samplers == 1)
  process.kill()
  assert began.wait(PATIENCE)
  new_store.close()
  threads.join()


def _checkpoint(hosts, toy, path: pathlib.Path) -> None:
  new_store = hosts.own()
  toy.insert(new_store, 't', [1, 2])
  new_store.checkpoint(str(path))
  new_store.close()


def test_own_server_that_begins_with_a_checkpoint_starts_once(
  hosts, toy, tmp_path
):
  path = tmp_path / '1'
  _checkpoint(hosts, toy, path)
  new_store = hosts.own(str(path))
  new_store.restore(str(path))
  assert hosts.starts == 1
  info = new_store.info()['t']
  assert (info.size, info.inserts, info.samples) == (2, 2, 0)
  assert toy.numbers(new_store.table('t').sampler(2).sample()) == [1, 2]
  # Later changes are gone, as after every restore.
  new_store.restore(str(path))
  assert hosts.starts == 2
  assert new_store.info()['t'].size == 2


@pytest.mark.parametrize(
  'damaged,begins',
  [('tables.tfrecord', False), ('tables.tfrecord', True), ('store.json', True)],
)
def test_own_server_that_cannot_load_a_checkpoint_is_empty(
  hosts, toy, tmp_path, damaged, begins
):
  path = tmp_path / '1'
  _checkpoint(hosts, toy, path)
  (path / damaged).write_bytes(b'damaged')
  new_store = hosts.own(str(path) if begins else None)
  if not begins:
    toy.insert(new_store, 't', [5, 6])
  with pytest.raises(replay.CheckpointError, match='is damaged'):
    new_store.restore(str(path))
  assert new_store.info()['t'].size == 0
  toy.insert(new_store, 't', [3, 4])
  assert toy.numbers(new_store.table('t').sampler(2).sample()) == [3, 4]
