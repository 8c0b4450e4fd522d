"""The limiter's arithmetic; it never locks inserts and samples out."""

import itertools
import math

import pytest

from seedrl_jax.replay import rate_limiter, table_configs


def _limiter(width=1, batch_size=1, **kwargs):
  kwargs = {'max_size': 10_000, 'tolerance': 0.0, **kwargs}
  config = table_configs.ReplayConfig('t', 'uniform', **kwargs)
  limiter = rate_limiter.RateLimiter(config, width)
  limiter.widen(batch_size)
  return limiter


def test_bounds_by_hand():
  # centre 2 * 10 = 20; buffer 0.25 * 20 = 5.
  limiter = _limiter(samples_per_insert=2.0, min_size=10, tolerance=0.25)
  assert limiter.buffer == 5
  limiter.inserts = 11
  assert limiter.can_insert(1, 11)  # 24 <= 25
  assert not limiter.can_insert(2, 11)  # 26
  assert limiter.can_sample(7, 11)  # 15 >= 15
  assert not limiter.can_sample(8, 11)
  limiter.samples = 7
  assert limiter.can_insert(5, 11)
  assert not limiter.can_insert(6, 11)


def test_below_the_minimum_only_inserts_pass():
  limiter = _limiter(samples_per_insert=1.0, min_size=5)
  limiter.inserts = 1000
  assert limiter.can_insert(1, 4)
  assert not limiter.can_sample(1, 4)
  assert not limiter.can_insert(1, 5)
  assert limiter.can_sample(1, 5)


@pytest.mark.parametrize(
  'width,batch_size,ratio,min_size',
  list(itertools.product([1, 3, 8], [1, 5, 16], [0.25, 1.0, 1.5, 6.0], [1, 9])),
)
def test_no_reachable_state_locks(width, batch_size, ratio, min_size):
  limiter = _limiter(
    width, batch_size, samples_per_insert=ratio, min_size=min_size
  )
  for turn in range(500):
    size = limiter.inserts
    insert = limiter.can_insert(width, size)
    sample = limiter.can_sample(batch_size, size, math.inf)
    assert insert or sample
    # Alternating preference drives the debt to both bounds.
    if insert and (not sample or turn // 50 % 2):
      limiter.inserts += width
    else:
      limiter.samples += batch_size
