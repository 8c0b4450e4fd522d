"""The rules of tables, and those of a run's table from its configuration."""

import itertools
import math

import pytest

from seedrl_jax.configs import base as configs
from seedrl_jax.replay import table_configs


def _config(**changes):
  config = configs.get_config()
  config.replay.update(changes)
  return config


def test_the_default_is_a_queue_of_two_batches():
  config = _config()
  expected = table_configs.QueueConfig('unrolls', 2 * config.batch_size)
  assert table_configs.table_config(config) == expected


def test_in_lock_step_a_queue_takes_an_unroll_of_every_environment():
  config = _config(max_size=32)
  size = table_configs.table_config(config, lock_step=True).max_size
  assert size == config.env.num_envs + 2 * config.batch_size


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
  expected = table_configs.ReplayConfig('unrolls', **rules)
  assert table_configs.table_config(_config(**rules)) == expected


def test_model_workers_sample_on_top_of_the_ratio():
  config = _config(sampler='uniform', max_size=500, max_times_sampled=0)
  config.asynchronous.update({'workers': 4, 'model_workers': 1})
  assert table_configs.table_config(config).samples_per_insert == 4 / 3


@pytest.mark.parametrize(
  'changes,message',
  [
    ({'sampler': 'uniform'}, r'replay\.max_size: a uniform table needs it'),
    ({'max_times_sampled': 3}, r'replay\.max_times_sampled=3'),
    ({'samples_per_insert': 2.0}, r'replay\.samples_per_insert=2\.0'),
  ],
)
def test_rules_that_cannot_be_configured(changes, message):
  with pytest.raises(ValueError, match=message):
    table_configs.table_config(_config(**changes))


@pytest.mark.parametrize(
  'changes,flag',
  [
    ({'min_size': 0}, 'min_size=0'),
    ({'min_size': 11}, 'min_size=11'),
    ({'max_times_sampled': 2, 'samples_per_insert': 4.0}, 'never reaches'),
  ],
)
def test_bad_rules_name_their_flag(changes, flag):
  rules = {'sampler': 'uniform', 'max_size': 10}
  with pytest.raises(ValueError, match=r'^--config\.replay\..*\.$') as error:
    table_configs.ReplayConfig('t', **{**rules, **changes})
  assert flag in str(error.value)


def _limiter(width=1, batch_size=1, **kwargs):
  kwargs = {'max_size': 10_000, 'tolerance': 0.0, **kwargs}
  config = table_configs.ReplayConfig('t', 'uniform', **kwargs)
  limiter = table_configs.RateLimiter(config, width)
  limiter.widen(batch_size)
  return limiter


def test_bounds_by_hand():
  # centre 2 * 10 = 20; buffer 0.25 * 20 = 5.
  limiter = _limiter(samples_per_insert=2.0, min_size=10, tolerance=0.25)
  assert limiter.bounds() == (15, 25)
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
