"""From a run's configuration to a store; errors name the flag."""

import pytest

from configs import base as configs
from seedrl_jax import replay


def _config(**changes):
  config = configs.get_config()
  config.replay.update(changes)
  return config


def test_the_default_is_a_queue_of_two_batches():
  config = _config()
  expected = replay.TableConfig.queue(replay.TABLE, 2 * config.batch_size)
  assert replay.table_config(config) == expected


def test_every_rule_comes_from_the_configuration():
  rules = {
    'sampler': 'prioritized',
    'max_size': 500,
    'max_times_sampled': 0,
    'samples_per_insert': 1.5,
    'tolerance': 0.2,
    'min_size': 50,
    'priority_exponent': 0.6,
  }
  expected = replay.TableConfig(replay.TABLE, **rules)
  assert replay.table_config(_config(**rules)) == expected


@pytest.mark.parametrize(
  'changes,message',
  [
    ({'max_size': 31}, r'replay\.max_size=31.*give 64'),
    ({'sampler': 'uniform'}, r'replay\.max_size: a uniform table needs it'),
    ({'max_times_sampled': 3}, r'replay\.max_times_sampled=3'),
    ({'sampler': 'lifo'}, r'replay\.'),
  ],
)
def test_rules_that_cannot_be(changes, message):
  with pytest.raises(ValueError, match=message):
    replay.table_config(_config(**changes))


@pytest.mark.parametrize('backend', ['embedded', 'auto'])
def test_makes_the_embedded_store(toy, backend):
  store = replay.make_store(_config(backend=backend), toy.spec(), 16)
  assert isinstance(store, replay.EmbeddedStore)
  assert list(store.info()) == [replay.TABLE]
  assert store.writer(replay.TABLE).allocate().width == 16


@pytest.mark.parametrize(
  'changes,width,message',
  [
    ({'backend': 'reverb'}, 16, 'backend=reverb: .*use embedded'),
    ({'backend': 'disk'}, 16, 'backend=disk: choose one of'),
    ({}, 5, r'batch_size=32: must be a multiple of 5'),
  ],
)
def test_stores_that_cannot_be(toy, changes, width, message):
  with pytest.raises(ValueError, match=message):
    replay.make_store(_config(**changes), toy.spec(), width)
