"""Tests of `seedrl_jax.benchmarks.actors`."""

import pytest

from seedrl_jax.benchmarks import actors
from tests import runs


def test_measures_remote_environments_against_local_ones():
  env = runs.tiny().env
  rows = list(actors.measure('toy', env, [1], 4, windows=2, seconds=0.05))
  assert [row['transport'] for row in rows] == ['unix', 'tcp']
  lines = [*actors.header(), *map(actors.line, rows)]
  assert len({line.count('|') for line in lines}) == 1
  for row in rows:
    assert (row['case'], row['actors'], row['envs']) == ('toy', 1, 4)
    # Catch shows 50 floats.
    assert 200 < row['bytes_per_step'] < 300
    pool, remote = row['pool']['median'], row['remote']['median']
    assert row['share'] == pytest.approx(remote / pool)
    assert 0 < row['latency_ms']['p50'] <= row['latency_ms']['p99']


def test_environments_that_are_no_groups_are_refused():
  with pytest.raises(ValueError, match='--envs_per_actor=3: must be'):
    next(actors.measure('toy', runs.tiny().env, [1], 3, 2, 0.05))
