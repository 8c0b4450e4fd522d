"""Tests which addresses shards can have.

tests/launch/test_train_async_server.py runs the processes.
"""

import re

import pytest

from seedrl_jax.run import layout
from seedrl_jax.workers import owned_server
from tests.workers import shards

_COUNT = 'for each of --config.asynchronous.shards=2.'


@pytest.mark.parametrize(
  ('addresses', 'sentence'),
  [
    (('localhost:1',), _COUNT),
    (('localhost:1', 'localhost:1'), _COUNT),
    (('localhost:1', 'localhost:0'), _COUNT),
    (('localhost:1', 'localhost'), 'localhost: must be unix:/path, host:port'),
    (('localhost:1', '0.0.0.0:1'), '0.0.0.0:1: other machines reach this ad'),
  ],
)
def test_addresses_that_do_not_fit_are_refused(addresses, sentence):
  config = shards.make_config(
    asynchronous__shards=2, asynchronous__addresses=addresses
  )
  with pytest.raises(ValueError, match=re.escape(sentence)) as error:
    owned_server.check_addresses(config)
  assert str(error.value).startswith('--config.asynchronous.addresses=')


def test_shards_are_in_sockets_or_at_safe_addresses():
  config = shards.make_config(asynchronous__shards=2)
  owned_server.check_addresses(config)
  config.asynchronous.addresses = ('0.0.0.0:1', 'unix:/a')
  config.actors.insecure = True
  owned_server.check_addresses(config)


def test_there_is_at_least_one_shard():
  config = shards.make_config(asynchronous__shards=0)
  with pytest.raises(ValueError, match=r'asynchronous\.shards=0: give'):
    layout.check(config)
