"""A table's rules in the server's terms."""

import contextlib

import pytest

from seedrl_jax.replay import table_configs
from seedrl_jax.replay.reverb import errors
from seedrl_jax.replay.reverb.client import connection, server_rules
from tests.replay.reverb import shared_servers


def _rules(sampler: str = 'prioritized', **rules) -> dict:
  config = table_configs.ReplayConfig(
    't', sampler, **{'max_size': 100, **rules}
  )
  return server_rules.server_rules(config, block_width=2, batch_size=6)


def _queue_rules(max_size: int = 9) -> dict:
  config = table_configs.QueueConfig('t', max_size)
  return server_rules.server_rules(config, block_width=2, batch_size=4)


@pytest.fixture(name='serve')
def serve_fixture(reverb_servers):
  """Starts servers; returns the state of their tables."""
  with contextlib.ExitStack() as stack:

    def serve(*rules):
      server = shared_servers.SharedServer(reverb_servers, rules)
      server.start()
      stack.callback(server.close)
      link = connection.Connection(server.address)
      stack.callback(link.close)
      return link.server_info()

    yield serve


@pytest.mark.parametrize(
  'served,wanted',
  [
    # A queue may be of another size.
    (_queue_rules(50), _queue_rules()),
    (_rules('uniform', samples_per_insert=0.3, min_size=7),) * 2,
    (_rules('uniform', samples_per_insert=0.0),) * 2,
    (_rules(priority_exponent=0.6, max_times_sampled=5),) * 2,
  ],
)
def test_a_server_that_was_started_so_fits(serve, served, wanted):
  server_rules.check_fits('h:1', serve(served), [wanted])


def test_what_differs_is_said(serve):
  served = serve(_rules(max_size=50, priority_exponent=0.5, min_size=3))
  with pytest.raises(errors.RequestRefused) as e:
    server_rules.check_fits('h:1', served, [_rules(max_size=60, min_size=4)])
  sentence = str(e.value)
  assert sentence.startswith('--config.replay.address=h:1: table t ')
  for words in (
    'max_size is 50 there and 60 here',
    'priority_exponent is 0.5 there and 0.9 here',
    'min_size_to_sample is 3 there and 4 here',
  ):
    assert words in sentence
  for word in ('sampler', 'remover', 'max_times_sampled', '\n'):
    assert word not in sentence
  other = _rules() | {'name': 'other'}
  with pytest.raises(
    errors.RequestRefused, match=r"address=h:1.*other.*\['t'\]"
  ):
    server_rules.check_fits('h:1', served, [other])
