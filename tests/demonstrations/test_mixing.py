"""Tests of batches with demonstrations."""

import os

import numpy as np
import pytest

from seedrl_jax.configs import base as configs
from seedrl_jax.demonstrations import folder, mixing
from seedrl_jax.replay import base as replay
from seedrl_jax.replay import blocks, table_configs
from tests.patience import wait_until


def _config(batch_size: int = 8, fraction: float = 0.25):
  config = configs.get_config()
  config.batch_size = batch_size
  config.demonstrations.fraction = fraction
  return config


def _rules(name: str, **rules) -> table_configs.ReplayConfig:
  rules = {'max_size': 100, 'samples_per_insert': 0.0, **rules}
  return table_configs.ReplayConfig(name, 'prioritized', **rules)


@pytest.fixture(name='make')
def make_fixture(make_store, toy):
  """Makes stores of unrolls 0 to 3 and demonstrations 100 to 102."""

  def make(demos=(100, 101, 102), **rules) -> replay.TrajectoryStore:
    store = make_store(
      _rules(table_configs.TABLE, **rules),
      _rules(folder.TABLE, block_width=1),
    )
    for first in (0, 2):
      toy.insert(store, table_configs.TABLE, [first, first + 1])
    for number in demos:
      toy.insert(store, folder.TABLE, [number])
    return store

  return make


def _sampler(store: replay.TrajectoryStore, num_blocks: int = 1):
  """Returns a sampler of 6 unrolls and 2 demonstrations."""
  return mixing.make_sampler(store, 8, num_blocks, 2 // num_blocks)


def test_every_block_has_its_share_and_what_is_known_of_it(make, toy):
  sample = _sampler(make(), num_blocks=2).sample()
  assert [block.width for block in sample.blocks] == [4, 4]
  is_demonstration = np.array(toy.numbers(sample)) >= 100
  assert is_demonstration.tolist() == 2 * [False, False, False, True]
  np.testing.assert_array_equal(
    sample.table_size, np.where(is_demonstration, 3, 4)
  )
  np.testing.assert_allclose(
    sample.probabilities, np.where(is_demonstration, 1 / 3, 1 / 4), rtol=1e-6
  )
  # Relative to its own table, each is drawn as often as it should be.
  np.testing.assert_allclose(sample.importance_weights(0.6), 1, rtol=1e-6)
  assert sample.keys.dtype == np.uint64
  np.testing.assert_array_equal(sample.priorities, np.ones(8))


def _update_all(sampler, store, toy, priority) -> None:
  """Sets each of the seven unrolls' priority once it is drawn."""
  seen: set[int] = set()
  for _ in range(1000):
    sample = sampler.sample()
    numbers = toy.numbers(sample)
    sample.update_priorities(np.array([priority(number) for number in numbers]))
    sample.release()
    seen.update(numbers)
    if len(seen) == 7:
      break
  assert len(seen) == 7


def test_equal_keys_of_two_tables_are_two(make, toy):
  store = make()
  sampler = mixing.make_sampler(store, 40, 1, 10)
  _update_all(sampler, store, toy, lambda number: 5.0 if number >= 100 else 2.0)
  sample = sampler.sample()
  is_demonstration = np.array(toy.numbers(sample)) >= 100
  np.testing.assert_array_equal(
    sample.priorities, np.where(is_demonstration, 5.0, 2.0)
  )


def test_a_released_batch_gives_its_memory_to_another(make):
  sampler = _sampler(make())
  first = sampler.sample()
  memory = first.blocks[0].leaves[0]
  other = sampler.sample()
  assert other.blocks[0].leaves[0] is not memory
  first.release()
  first.release()
  assert sampler.sample().blocks[0].leaves[0] is memory


def test_a_table_that_fills_holds_the_batch_up(make, toy):
  store = make(min_size=5)
  sampler = _sampler(store)
  with pytest.raises(replay.RateLimited, match='table unrolls'):
    sampler.sample(wait=False)
  assert store.info()[folder.TABLE].samples == 0
  toy.insert(store, table_configs.TABLE, [4, 5])
  assert len(toy.numbers(sampler.sample())) == 8


@pytest.mark.parametrize('waits_for', [table_configs.TABLE, folder.TABLE])
def test_interruption_ends_every_wait(make, threads, waits_for):
  store = make(
    demos=() if waits_for == folder.TABLE else (100,),
    min_size=1 if waits_for == folder.TABLE else 5,
  )
  sampler = _sampler(store)
  for _ in range(2):
    threads.start(sampler.sample)
  wait_until(lambda: store.info()[waits_for].waiting_samplers == 2)
  store.interrupt()
  errors = threads.join()
  assert [type(e) for e in errors] == [replay.StoreClosed] * 2


def test_without_a_fraction_there_is_one_table(make):
  store = make()
  sampler = mixing.make_sampler(store, 8, 1, 0)
  assert not isinstance(sampler, mixing.MixedSampler)
  sampler.sample()
  assert store.info()[folder.TABLE].samples == 0


@pytest.mark.parametrize(
  'batch_size,fraction,num_blocks,expected',
  [(64, 0.25, 2, 8), (32, 0.03125, 1, 1), (24, 0.33333, 1, 8), (8, 0.0, 2, 0)],
)
def test_share_of_a_block(batch_size, fraction, num_blocks, expected):
  config = _config(batch_size, fraction)
  assert mixing.demonstrations_per_block(config, num_blocks) == expected


@pytest.mark.parametrize(
  'batch_size,fraction,num_blocks,message',
  [
    (64, 0.3, 2, r'=0.3: of the 32 .* that is 9.6; give 0.3125 \(that is 10\)'),
    (64, 0.001, 1, r'give 0.015625 \(that is 1\)'),
    (8, 0.99, 2, r'give 0.75 \(that is 3\)'),
    (2, 0.5, 2, 'raise --config.batch_size'),
  ],
)
def test_shares_that_cannot_be(batch_size, fraction, num_blocks, message):
  with pytest.raises(ValueError, match=message):
    mixing.demonstrations_per_block(_config(batch_size, fraction), num_blocks)


def _table_config(sampler: str = 'prioritized', **section):
  config = configs.get_config()
  config.replay.update(
    sampler=sampler, max_size=50, max_times_sampled=0, priority_exponent=0.7
  )
  config.demonstrations.update(section)
  return config


@pytest.fixture(name='demos')
def demos_fixture(toy, tmp_path) -> str:
  layout = blocks.UnrollLayout(toy.spec())
  path = os.fspath(tmp_path / 'demos')
  with folder.create(path, layout) as writer:
    writer.insert(layout.new_block(7))
    writer.manifest = folder.Manifest(
      'Toy-v0', 7, 1, 0.0, 'a test', layout.signature()
    )
  return path


@pytest.mark.parametrize('sampler', ['prioritized', 'uniform'])
def test_demonstrations_are_drawn_as_unrolls_are_and_stay(demos, sampler):
  config = _table_config(sampler)
  assert mixing.run_tables(config) == [table_configs.table_config(config)]
  config.demonstrations.update(path=demos, fraction=0.25)
  first, second = mixing.run_tables(config)
  assert first == table_configs.table_config(config)
  assert second == table_configs.ReplayConfig(
    'demonstrations',
    sampler,
    max_size=7,
    max_times_sampled=0,
    samples_per_insert=0.0,
    priority_exponent=0.7,
    block_width=1,
  )


@pytest.mark.parametrize(
  'section,message',
  [
    ({'path': 'x'}, r'fraction=0\.0: give a number above 0 and below 1'),
    ({'path': 'x', 'fraction': 1.0}, r'fraction=1\.0: give a number'),
    ({'fraction': 0.5}, r'fraction=0\.5: there are none; give .*\.path'),
    ({'path': 'x', 'fraction': 0.5}, 'path=x: no demonstrations are there'),
  ],
)
def test_refusals_name_the_flag(section, message):
  with pytest.raises(ValueError, match=message):
    mixing.run_tables(_table_config(**section))


def test_a_queue_cannot_be_mixed():
  config = _table_config('fifo', path='x', fraction=0.5)
  config.replay.max_times_sampled = 1
  with pytest.raises(ValueError, match='a fifo queue cannot be mixed'):
    mixing.run_tables(config)


def test_a_server_that_others_fill_needs_a_size():
  config = _table_config(fraction=0.5)
  config.replay.address = 'localhost:1'
  with pytest.raises(ValueError, match=r'demonstrations\.max_size: give it'):
    mixing.run_tables(config)
  config.demonstrations.max_size = 8
  assert mixing.run_tables(config)[1].max_size == 8
