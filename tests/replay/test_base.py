"""A table's state, and the weights of samples."""

import numpy as np
import pytest

from seedrl_jax.replay import base, table_configs


def _info(**values):
  config = table_configs.ReplayConfig('t', 'uniform', 100, min_size=10)
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
  # Removals can bring the size below the minimum again.
  assert not _info(size=3, samples=1).filling()


def _sample(probabilities, table_size):
  size = len(probabilities)
  return base.ReplaySample(
    [],
    on_release=lambda blocks: None,
    keys=np.arange(size, dtype=np.uint64),
    probabilities=np.array(probabilities, np.float32),
    table_size=np.full(size, table_size, np.float32),
    priorities=np.ones(size),
    on_update=lambda priorities: None,
  )


@pytest.mark.parametrize(
  'chances, sizes, exponent, expected',
  [
    ([0.025, 0.1, 0.2], [10, 10, 20], 0.0, [1.0, 1.0, 1.0]),
    ([0.025, 0.1, 0.2], [10, 10, 20], 0.5, [2.0, 1.0, 0.5]),
    ([0.025, 0.1, 0.2], [10, 10, 20], 1.0, [4.0, 1.0, 0.25]),
    # A chance that rounds to nothing is like the least likely of the others.
    ([1e-44, 0.025, 0.2], 10, 1.0, [4.0, 4.0, 0.5]),
    # It is at most as if all were equally likely.
    ([1e-44, 0.2, 0.4], 10, 1.0, [1.0, 0.5, 0.25]),
    ([1e-44, 0.0, 0.0], 10, 1.0, [1.0, 1.0, 1.0]),
  ],
)
def test_importance_weights(chances, sizes, exponent, expected):
  weights = _sample(chances, sizes).importance_weights(exponent)
  assert weights.dtype == np.float32
  np.testing.assert_allclose(weights, expected, rtol=1e-6)
