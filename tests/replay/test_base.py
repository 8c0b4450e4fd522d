"""The rules of a table, checked where they are made."""

import numpy as np
import pytest

from seedrl_jax import replay
from seedrl_jax.replay import base


def test_queue_has_a_queues_rules():
  config = replay.TableConfig.queue('q', 10)
  assert (config.sampler, config.max_size) == ('fifo', 10)
  assert (config.max_times_sampled, config.samples_per_insert) == (1, 1.0)


@pytest.mark.parametrize(
  'changes,flag',
  [
    ({'min_size': 0}, 'min_size=0'),
    ({'min_size': 11}, 'min_size=11'),
    ({'max_times_sampled': 2, 'samples_per_insert': 4.0}, 'never reaches'),
    ({'sampler': 'fifo', 'max_times_sampled': 2}, 'max_times_sampled=2'),
    ({'sampler': 'fifo', 'samples_per_insert': 2.0}, 'samples_per_insert=2.0'),
  ],
)
def test_bad_rules_name_their_flag(changes, flag):
  rules = {'sampler': 'uniform', 'max_size': 10, 'max_times_sampled': 0}
  if changes.get('sampler') == 'fifo':
    rules['max_times_sampled'] = 1
  with pytest.raises(ValueError, match=r'^--config\.replay\..*\.$') as error:
    replay.TableConfig('t', **{**rules, **changes})
  assert flag in str(error.value)


def _info(**values):
  config = replay.TableConfig('t', 'uniform', 100, min_size=10)
  counts = {'size': 0, 'inserts': 0, 'samples': 0, **values}
  return base.TableInfo(
    config,
    **counts,
    writer_wait_seconds=0.0,
    sampler_wait_seconds=0.0,
    waiting_writers=0,
    waiting_samplers=0,
  )


@pytest.mark.parametrize(
  'inserts, samples, ratio', [(0, 0, 0), (9, 0, 0), (10, 2, 2), (29, 40, 2)]
)
def test_ratio_counts_from_the_least_size_on(inserts, samples, ratio):
  assert _info(inserts=inserts, samples=samples).samples_per_insert == ratio


def test_a_table_says_how_far_it_is_filled():
  assert _info(size=3).filling() == 'the replay (3 of 10 unrolls)'
  assert not _info(size=10).filling()
  # What is drawn from can fall below it by what is removed.
  assert not _info(size=3, samples=1).filling()


def _sample(probabilities, table_size):
  size = len(probabilities)
  return base.Sample(
    [],
    keys=np.arange(size, dtype=np.uint64),
    probabilities=np.array(probabilities, np.float32),
    table_size=np.array(table_size, np.float32),
    priorities=np.ones(size),
    on_release=lambda blocks: None,
  )


@pytest.mark.parametrize(
  'exponent, expected',
  [(0.0, [1.0, 1.0, 1.0]), (0.5, [2.0, 1.0, 0.5]), (1.0, [4.0, 1.0, 0.25])],
)
def test_importance_weights(exponent, expected):
  sample = _sample([0.025, 0.1, 0.2], [10, 10, 20])
  weights = sample.importance_weights(exponent)
  assert weights.dtype == np.float32
  np.testing.assert_allclose(weights, expected, rtol=1e-6)


@pytest.mark.parametrize('chance', [0.0, 1e-44])
@pytest.mark.parametrize(
  'others, expected',
  [
    # As the least likely of the others.
    ([0.025, 0.2], [4.0, 4.0, 0.5]),
    # At most as if all were drawn alike.
    ([0.2, 0.4], [1.0, 0.5, 0.25]),
    ([0.0, 0.0], [1.0, 1.0, 1.0]),
  ],
)
def test_a_chance_that_rounds_to_nothing_has_no_infinite_weight(
  chance, others, expected
):
  sample = _sample([chance, *others], [10, 10, 10])
  np.testing.assert_allclose(
    sample.importance_weights(1.0), expected, rtol=1e-6
  )
  np.testing.assert_array_equal(sample.importance_weights(0.0), 1.0)
