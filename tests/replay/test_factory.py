"""From a run's configuration to a store; errors name the flag."""

import contextlib
from collections.abc import Callable, Iterator

import pytest

from seedrl_jax.configs import base as configs
from seedrl_jax.replay import base as replay
from seedrl_jax.replay import factory, table_configs
from seedrl_jax.replay.embedded import store as embedded
from seedrl_jax.replay.reverb.client import server_rules, store
from seedrl_jax.replay.reverb.server import environment
from tests.replay.reverb import shared_servers


def _config(**changes):
  config = configs.get_config()
  config.replay.update(changes)
  return config


@pytest.fixture(name='no_environment')
def no_environment_fixture(monkeypatch) -> None:
  """Simulates a machine that cannot run a Reverb server."""

  def ensure() -> str:
    raise environment.EnvironmentUnavailable('No Python has it.')

  monkeypatch.setattr(environment, 'ensure', ensure)


@pytest.fixture(name='make')
def make_fixture(toy) -> Iterator[Callable[..., replay.TrajectoryStore]]:
  """Makes stores of toy unrolls; closes them afterwards."""
  with contextlib.ExitStack() as stack:

    def make(
      width: int = 16,
      lock_step: bool = False,
      has_single_steps: bool = False,
      local_inference: bool = False,
      **changes,
    ):
      config = _config(**changes)
      new_store = factory.make_store(
        config.replay,
        [table_configs.table_config(config)],
        toy.spec(),
        width,
        config.batch_size,
        config.seed,
        lock_step=lock_step,
        has_single_steps=has_single_steps,
        local_inference=local_inference,
      )
      stack.callback(new_store.close)
      return new_store

    yield make


@pytest.mark.parametrize(
  'changes',
  [
    {'backend': 'embedded'},
    {'backend': 'auto'},
    {'has_single_steps': True, 'sampler': 'uniform', 'max_size': 64}
    | {'max_times_sampled': 0},
    {'lock_step': True, 'sampler': 'uniform', 'max_size': 64}
    | {'max_times_sampled': 0},
  ],
)
def test_what_never_asks_for_reverb(make, no_environment, caplog, changes):
  new_store = make(**changes)
  assert not caplog.records
  assert isinstance(new_store, embedded.EmbeddedStore)
  assert list(new_store.info()) == [table_configs.TABLE]
  assert new_store.table(table_configs.TABLE).allocate().width == 16


@pytest.mark.parametrize(
  'changes',
  [
    {'backend': 'reverb'},
    {'local_inference': True},
    {'sampler': 'prioritized', 'max_size': 64, 'max_times_sampled': 0},
  ],
)
def test_makes_a_server_of_its_own(
  make, toy, reverb_servers, monkeypatch, changes
):
  def make_server(python, rules, folder, keep_checkpoints):
    del python
    assert (folder, keep_checkpoints) == (None, False)
    return shared_servers.SharedServer(reverb_servers, rules)

  monkeypatch.setattr(factory.server, 'ReverbServer', make_server)
  new_store = make(**changes)
  assert isinstance(new_store, store.ReverbStore)
  toy.insert(new_store, table_configs.TABLE, list(range(16)))
  new_store.flush()
  assert new_store.info()[table_configs.TABLE].size == 16


def test_finds_a_server_that_runs(make, toy, reverb_servers):
  rules = table_configs.table_config(_config())
  server = shared_servers.SharedServer(
    reverb_servers, [server_rules.server_rules(rules, 32, 32)]
  )
  server.start()
  new_store = make(backend='auto', address=server.address)
  assert new_store.location.link.address == server.address
  toy.insert(new_store, table_configs.TABLE, list(range(16)))
  new_store.flush()
  new_store.close()
  server.close()


def test_auto_without_an_environment_is_embedded(make, no_environment, caplog):
  new_store = make(sampler='uniform', max_size=64, max_times_sampled=0)
  assert isinstance(new_store, embedded.EmbeddedStore)
  (warning,) = [r for r in caplog.records if r.levelname == 'WARNING']
  assert 'embedded' in warning.getMessage()
  assert warning.getMessage().endswith('No Python has it.')


@pytest.mark.parametrize(
  'changes,flag',
  [
    ({'backend': 'reverb'}, 'replay.backend=reverb'),
    ({'local_inference': True}, 'actors.local_inference=True'),
  ],
)
def test_reverb_without_an_environment_fails(
  make, no_environment, changes, flag
):
  with pytest.raises(ValueError, match=f'config.{flag}: No Python has it'):
    make(**changes)


@pytest.mark.parametrize(
  'changes,message',
  [
    ({'width': 5}, r'batch_size=32 .*: must be a multiple of 5'),
    ({'max_size': 31}, r'replay.max_size=31: a queue must hold a batch of 32'),
    ({'backend': 'reverb', 'lock_step': True}, 'deterministic=True: '),
    ({'address': 'h:1', 'lock_step': True}, 'deterministic=True: '),
    ({'backend': 'embedded', 'address': 'h:1'}, 'replay.address=h:1: '),
    ({'local_inference': True, 'backend': 'embedded'}, 'True: .*need Reverb'),
    ({'local_inference': True, 'lock_step': True}, 'True: .*need Reverb'),
    ({'address': 'h'}, 'replay.address=h: must be host:port'),
    ({'address': ':1'}, 'replay.address=:1: must be host:port'),
    ({'address': 'h:x'}, 'replay.address=h:x: must be host:port'),
    (
      {'backend': 'reverb', 'address': 'localhost:1', 'patience': 0.0},
      'No Reverb server answers at localhost:1',
    ),
  ],
)
def test_stores_that_cannot_be(make, changes, message):
  with pytest.raises(ValueError, match=message):
    make(**changes)
