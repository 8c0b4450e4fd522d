"""Batches of unrolls and demonstrations, on both backends."""

import types as python_types

import numpy as np
import pytest

from configs import base as configs
from seedrl_jax import replay
from seedrl_jax.demonstrations import folder, mixing

_FRACTION = 'demonstrations.fraction'


def _config(batch_size: int = 8, fraction: float = 0.25):
  config = configs.get_config()
  config.batch_size = batch_size
  config.demonstrations.fraction = fraction
  return config


def _rules(name: str, **rules) -> replay.TableConfig:
  rules = {'max_size': 100, 'samples_per_insert': 0.0, **rules}
  return replay.TableConfig(name, 'prioritized', **rules)


@pytest.fixture(name='make')
def make_fixture(make_store, toy):
  """Makes stores of unrolls 0 to 3 and demonstrations 100 to 102."""

  def make(demos=(100, 101, 102), **rules) -> replay.TrajectoryStore:
    store = make_store(
      _rules(replay.TABLE, **rules),
      _rules(folder.TABLE, block_width=1),
    )
    for first in (0, 2):
      toy.insert(store, replay.TABLE, [first, first + 1])
    for number in demos:
      toy.insert(store, folder.TABLE, [number])
    return store

  return make


def test_every_block_has_its_share(make, toy):
  source = mixing.make_source(_config(), make(), num_blocks=2)
  sample = source.sampler.sample(0)
  assert [block.width for block in sample.blocks] == [4, 4]
  numbers = np.array(toy.numbers(sample)).reshape(2, 4)
  assert (numbers[:, :3] < 4).all()
  assert (numbers[:, 3] >= 100).all()


def test_what_is_known_of_an_unroll_stands_in_its_column(make, toy):
  source = mixing.make_source(_config(), make(), num_blocks=2)
  sample = source.sampler.sample(0)
  is_demonstration = np.array(toy.numbers(sample)) >= 100
  np.testing.assert_array_equal(
    sample.table_size, np.where(is_demonstration, 3, 4)
  )
  np.testing.assert_allclose(
    sample.probabilities, np.where(is_demonstration, 1 / 3, 1 / 4), rtol=1e-6
  )
  # By each table's own size, each is drawn as often as it should be.
  np.testing.assert_allclose(sample.importance_weights(0.6), 1, rtol=1e-6)
  assert sample.keys.dtype == np.uint64
  np.testing.assert_array_equal(sample.priorities, np.ones(8))


def _update_all(source, store, toy, priority) -> None:
  """Gives each of the seven unrolls, once it was drawn, `priority(number)`."""
  seen: set[int] = set()
  for _ in range(1000):
    sample = source.sampler.sample(0)
    numbers = toy.numbers(sample)
    source.update_priorities(
      sample.keys, np.array([priority(number) for number in numbers])
    )
    sample.release()
    seen.update(numbers)
    if len(seen) == 7:
      break
  assert len(seen) == 7
  store.flush()
  # Which of several batches was drawn before that is Reverb's affair.
  source.sampler.sample(0).release()


def test_priorities_go_to_the_table_of_their_column(make, toy):
  store = make()
  source = mixing.make_source(_config(batch_size=40), store, num_blocks=2)
  # Only one of each table is to be drawn from now on.
  _update_all(source, store, toy, lambda number: float(number in (2, 101)))
  again = toy.numbers(source.sampler.sample(0))
  assert set(again) == {2, 101}


def test_equal_keys_of_two_tables_are_two(make, toy):
  store = make()
  source = mixing.make_source(_config(batch_size=40), store, num_blocks=1)
  _update_all(source, store, toy, lambda number: 5.0 if number >= 100 else 2.0)
  sample = source.sampler.sample(0)
  is_demonstration = np.array(toy.numbers(sample)) >= 100
  np.testing.assert_array_equal(
    sample.priorities, np.where(is_demonstration, 5.0, 2.0)
  )


def test_a_released_batch_gives_its_memory_to_another(make):
  sampler = mixing.make_source(_config(), make(), num_blocks=1).sampler
  first = sampler.sample(0)
  memory = first.blocks[0].leaves[0]
  other = sampler.sample(0)
  assert other.blocks[0].leaves[0] is not memory
  first.release()
  first.release()
  assert sampler.sample(0).blocks[0].leaves[0] is memory


def test_a_time_out_loses_nothing_of_the_other_part(make, toy):
  store = make(demos=())
  sampler = mixing.make_source(_config(), store, num_blocks=1).sampler
  for _ in range(3):
    with pytest.raises(replay.RateLimited, match='table demonstrations'):
      sampler.sample(0)
  toy.insert(store, folder.TABLE, [100])
  assert toy.numbers(sampler.sample(300.0))[6:] == [100, 100]
  # Six of the unrolls were drawn for this batch, none for those that failed.
  drawn = store.info()
  assert drawn[replay.TABLE].samples == 6
  assert drawn[folder.TABLE].samples == 2


def test_a_table_that_fills_holds_the_batch_up(make, toy):
  store = make(min_size=5)
  sampler = mixing.make_source(_config(), store, num_blocks=1).sampler
  with pytest.raises(replay.RateLimited, match='table unrolls'):
    sampler.sample(0)
  assert store.info()[folder.TABLE].samples == 0
  toy.insert(store, replay.TABLE, [4, 5])
  assert len(toy.numbers(sampler.sample(300.0))) == 8


@pytest.mark.parametrize('waits_for', [replay.TABLE, folder.TABLE])
def test_interruption_ends_every_wait(make, threads, waits_for):
  store = make(
    demos=() if waits_for == folder.TABLE else (100,),
    min_size=1 if waits_for == folder.TABLE else 5,
  )
  sampler = mixing.make_source(_config(), store, num_blocks=1).sampler
  for _ in range(2):
    threads.start(sampler.sample)
  threads.until(lambda: store.info()[waits_for].waiting_samplers == 1)
  store.interrupt()
  errors = threads.join()
  assert [type(e) for e in errors] == [replay.StoreClosed] * 2


def test_who_waits_for_another_callers_turn_times_out(make, threads):
  store = make(demos=())
  sampler = mixing.make_source(_config(), store, num_blocks=1).sampler
  threads.start(sampler.sample)
  name = folder.TABLE
  threads.until(lambda: store.info()[name].waiting_samplers == 1)
  with pytest.raises(replay.RateLimited, match='turn'):
    sampler.sample(0)
  store.interrupt()
  threads.join()


def test_without_a_fraction_there_is_one_table(make_store, toy):
  store = make_store(_rules(replay.TABLE))
  for first in (0, 2):
    toy.insert(store, replay.TABLE, [first, first + 1])
  source = mixing.make_source(_config(fraction=0.0), store, num_blocks=1)
  sample = source.sampler.sample(0)
  assert isinstance(source.sampler, replay.TrajectorySampler)
  source.update_priorities(sample.keys, np.full(8, 3.0))
  source.sampler.sample(0).release()
  assert set(source.sampler.sample(0).priorities) <= {1.0, 3.0}
  assert list(store.info()) == [replay.TABLE]


@pytest.mark.parametrize(
  'batch_size,fraction,num_blocks,expected',
  [(64, 0.25, 2, 8), (32, 0.03125, 1, 1), (24, 0.33333, 1, 8), (8, 0.0, 2, 0)],
)
def test_share_of_a_block(batch_size, fraction, num_blocks, expected):
  config = _config(batch_size, fraction)
  found = mixing.demonstrations_per_block(config, num_blocks)
  assert found == expected


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


def test_the_clock_of_a_time_out_runs_over_both_parts(make, monkeypatch):
  store = make(demos=())
  sampler = mixing.make_source(_config(), store, num_blocks=1).sampler
  given = []
  clock = python_types.SimpleNamespace(now=0.0)
  clock.monotonic = lambda: clock.now
  monkeypatch.setattr(mixing, 'time', clock)
  unrolls, others = (part.sampler for part in sampler._parts)
  draw = unrolls.sample

  def slow(timeout):
    given.append(timeout)
    clock.now += 4.0
    return draw(timeout)

  def fail(timeout):
    given.append(timeout)
    raise replay.RateLimited('none')

  monkeypatch.setattr(unrolls, 'sample', slow)
  monkeypatch.setattr(others, 'sample', fail)
  with pytest.raises(replay.RateLimited):
    sampler.sample(10.0)
  assert given == [10.0, 6.0]
