"""A table's rules in the server's terms."""

import contextlib
import sys

import pytest

from seedrl_jax.replay import table_configs
from seedrl_jax.replay.reverb.client import connection, errors, server_rules
from tests.replay.reverb import shared_servers


def _rules(sampler: str = 'prioritized', **rules) -> dict:
  config = table_configs.ReplayConfig(
    't', sampler, **{'max_size': 100, **rules}
  )
  return server_rules.server_rules(config, block_width=2, batch_size=6)


def _queue_rules(max_size: int = 9) -> dict:
  return server_rules.server_rules(
    table_configs.QueueConfig('t', max_size), 2, 4
  )


def test_a_queue_counts_blocks():
  # Two of its four blocks are on their way.
  assert _queue_rules() == {
    'name': 't',
    'sampler': 'fifo',
    'priority_exponent': 0.0,
    'max_times_sampled': 1,
    'samples_per_insert': 1.0,
    'max_size': 2,
    'min_size_to_sample': 1,
    'min_diff': 0.0,
    'max_diff': 2.0,
  }


@pytest.mark.parametrize('sampler', ['prioritized', 'uniform'])
def test_other_tables_count_unrolls(sampler):
  rules = _rules(
    sampler, min_size=50, samples_per_insert=2.0, priority_exponent=0.6
  )
  assert rules['sampler'] == sampler
  assert rules['max_size'] == 100
  assert rules['min_size_to_sample'] == 50
  assert rules['samples_per_insert'] == 2.0
  assert rules['priority_exponent'] == 0.6
  # A tenth of 50 * 2 on both sides.
  assert (rules['min_diff'], rules['max_diff']) == (90.0, 110.0)


def test_the_ratio_has_room_for_a_batch_whatever_the_blocks_are():
  rules = _rules(min_size=10, samples_per_insert=0.5, tolerance=0.1)
  # A block as wide as a batch of 6 is worth 3; half of both.
  assert (rules['min_diff'], rules['max_diff']) == (0.5, 9.5)


def test_without_a_ratio_nothing_holds_back():
  rules = _rules(samples_per_insert=0.0)
  assert rules['samples_per_insert'] > 0
  assert rules['max_diff'] == -rules['min_diff'] == sys.float_info.max


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
  'wanted',
  [
    _queue_rules(),
    _rules('uniform', samples_per_insert=0.3, min_size=7),
    _rules('uniform', samples_per_insert=0.0),
    _rules(priority_exponent=0.6, max_times_sampled=5),
  ],
)
def test_a_server_that_was_started_so_fits(serve, wanted):
  server_rules.check_fits('h:1', serve(wanted), [wanted])


def test_a_queue_on_a_server_may_be_of_another_size(serve):
  server_rules.check_fits('h:1', serve(_queue_rules(50)), [_queue_rules()])


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


def test_another_sampler_is_said(serve):
  with pytest.raises(errors.RequestRefused, match='is uniform there and fifo'):
    server_rules.check_fits('h:1', serve(_rules('uniform')), [_queue_rules()])


def test_a_table_that_is_not_there_is_named(serve):
  wanted = _rules() | {'name': 'other'}
  with pytest.raises(errors.UnknownTable, match=r"address=h:1.*other.*\['t'\]"):
    server_rules.check_fits('h:1', serve(_rules()), [wanted])
