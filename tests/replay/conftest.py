"""Toy unrolls, and the backends of the contract tests, `test_contract_*.py`."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.replay import base as replay
from seedrl_jax.replay import table_configs
from seedrl_jax.replay.embedded import store as embedded
from seedrl_jax.replay.reverb.client import (
  connection,
  sampler,
  server_location,
  server_rules,
  store,
)
from seedrl_jax.runtime import nest
from tests.patience import PATIENCE
from tests.replay.reverb import shared_servers


def _reverb_location(
  request: pytest.FixtureRequest,
) -> Callable[..., server_location.OwnServer]:
  """Returns a maker of a server's location that patiently counts."""
  servers = request.getfixturevalue('reverb_servers')
  patch = request.getfixturevalue('monkeypatch')
  patch.setattr(store, '_FLUSH_SECONDS', PATIENCE)
  patch.setattr(connection, '_GLANCE', PATIENCE)
  # Nothing ahead: tests count what was drawn.
  patch.setattr(sampler, '_AHEAD', 0)
  return lambda rules: make_own_server(servers, rules)


def make_own_server(servers, rules, *args) -> server_location.OwnServer:
  process = shared_servers.SharedServer(servers, rules)
  return server_location.OwnServer(process, PATIENCE, *args)


class Toy:
  """Unrolls filled with one number below 256 each."""

  def spec(self, steps: int = 3) -> types.Unroll:
    """Returns the spec of a toy unroll, with leaves of several types."""

    def spec(*shape: int, dtype: type = np.float32) -> types.ArraySpec:
      return types.ArraySpec((steps, *shape), np.dtype(dtype))

    return types.Unroll(
      steps=types.Steps(
        observation={'image': spec(2, 2, dtype=np.uint8), 'speed': spec(3)},
        reward=spec(),
        discount=spec(),
        step_type=spec(dtype=np.uint8),
        previous_action=spec(dtype=np.int32),
        agent_output=(spec(dtype=np.int32), None),
        parameter_version=spec(dtype=np.int32),
      ),
      initial_core=[types.ArraySpec((4,), np.dtype(np.float32))],
      env_id=types.ArraySpec((), np.dtype(np.int32)),
    )

  def queue(self, max_size: int = 4) -> table_configs.QueueConfig:
    return table_configs.QueueConfig('t', max_size)

  def items(
    self, sampler: str = 'prioritized', **rules: Any
  ) -> table_configs.ReplayConfig:
    """Returns the rules of a replay, without a ratio by default."""
    rules = {'max_size': 100, 'samples_per_insert': 0.0, **rules}
    return table_configs.ReplayConfig('t', sampler, **rules)

  def fill(self, block: replay.Block, numbers: list[int]) -> None:
    """Writes number i to all of column i."""
    assert len(numbers) == block.width
    for columns in self._columns(block):
      shape = (-1,) + (1,) * (columns.ndim - 1)
      columns[...] = np.reshape(numbers, shape)

  def insert(
    self,
    store: replay.TrajectoryStore,
    table: str,
    numbers: list[int],
    priorities: list[float] | None = None,
  ) -> None:
    writer = store.table(table)
    block = writer.allocate()
    self.fill(block, numbers)
    array = None if priorities is None else np.asarray(priorities)
    writer.insert(block, array)

  def insert_pairs(self, store: replay.TrajectoryStore, count: int) -> None:
    """Inserts `count` blocks of the numbers 0 and 1, 2 and 3, and so on."""
    for first in range(0, 2 * count, 2):
      self.insert(store, 't', [first, first + 1])

  def drawn(self, store: replay.TrajectoryStore, batch_size: int) -> set[int]:
    return set(self.numbers(store.table('t').sampler(batch_size).sample()))

  def numbers(self, sample: replay.Sample) -> list[int]:
    """Returns each unroll's number; checks that all of it has that number."""
    result: list[int] = []
    for block in sample.blocks:
      numbers = block.unroll.env_id.tolist()
      for columns in self._columns(block):
        shape = (-1,) + (1,) * (columns.ndim - 1)
        expected = np.broadcast_to(np.reshape(numbers, shape), columns.shape)
        np.testing.assert_array_equal(columns, expected)
      result += numbers
    return result

  def _columns(self, block: replay.Block) -> list[np.ndarray]:
    steps = len(nest.flatten(block.unroll.steps))
    time_major, others = block.leaves[:steps], block.leaves[steps:]
    return [leaf.swapaxes(0, 1) for leaf in time_major] + others


@pytest.fixture(scope='session', name='reverb_servers')
def reverb_servers_fixture(
  server_python: str,
) -> Iterator[shared_servers.ServerFactory]:
  """Makes real Reverb servers, in one process for all tests."""
  factory = shared_servers.ServerFactory(server_python)
  yield factory
  factory.close()


@pytest.fixture(name='toy')
def toy_fixture() -> Toy:
  return Toy()


@pytest.fixture(name='make_store', params=['embedded', 'reverb'])
def make_store_fixture(
  request: pytest.FixtureRequest, toy: Toy
) -> Iterator[Callable[..., replay.TrajectoryStore]]:
  """Makes stores of toy unrolls in blocks of 2; closes them afterwards."""
  stores: list[replay.TrajectoryStore] = []

  def make(
    *configs: table_configs.TableConfig,
    width: int = 2,
    seed: int = 1,
    steps: int = 3,
    overlap: int = 1,
    batch_size: int = 200,
  ) -> replay.TrajectoryStore:
    spec = toy.spec(steps)
    new_store: replay.TrajectoryStore
    if request.param == 'embedded':
      new_store = embedded.EmbeddedStore(configs, spec, width, seed, overlap)
    else:
      make_location = _reverb_location(request)
      rules = [server_rules.server_rules(c, width, batch_size) for c in configs]
      new_store = store.ReverbStore(
        configs, spec, width, make_location(rules), overlap
      )
    stores.append(new_store)
    return new_store

  yield make
  for each in stores:
    each.close()


class Threads:
  """Runs functions in threads and passes on their exceptions."""

  def __init__(self) -> None:
    self._threads: list[threading.Thread] = []
    self._errors: list[BaseException] = []

  def start(self, function: Callable[[], object]) -> None:

    def run() -> None:
      try:
        function()
      except BaseException as e:
        self._errors.append(e)

    self._threads.append(threading.Thread(target=run, daemon=True))
    self._threads[-1].start()

  def join(self) -> list[BaseException]:
    """Waits for all threads; returns their exceptions."""
    for thread in self._threads:
      thread.join(PATIENCE)
      assert not thread.is_alive(), 'a thread hangs'
    errors, self._errors = self._errors, []
    return errors


@pytest.fixture(name='threads')
def threads_fixture() -> Threads:
  return Threads()
