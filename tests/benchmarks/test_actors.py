"""Tests of `seedrl_jax.benchmarks.actors`."""

import pytest

from seedrl_jax.benchmarks import actors
from tests import runs

_LENGTH = actors.Length(windows=2, seconds=0.05, calls=20)


def test_measures_remote_environments_against_local_ones():
  env = runs.tiny().env
  rows = list(actors.measure('toy', env, [1], [4], _LENGTH))
  assert [row['transport'] for row in rows] == ['unix', 'tcp'] * 2
  assert [row['actors'] for row in rows] == [0, 0, 1, 1]
  lines = [*actors.header(), *map(actors.line, rows)]
  assert len({line.count('|') for line in lines}) == 1
  for row in rows:
    assert row['case'] == 'toy'
    # Catch shows 50 floats.
    assert 200 < row['bytes_per_step'] < 300
    assert 0 < row['latency_ms']['p50'] <= row['latency_ms']['p99']
  # First without an actor, as light a load as there is.
  assert all(row['envs'] == 0 and row['share'] is None for row in rows[:2])
  for row in rows[2:]:
    assert row['envs'] == 4
    pool, remote = row['pool']['median'], row['remote']['median']
    assert row['share'] == pytest.approx(remote / pool)


def test_environments_that_are_no_groups_are_refused():
  with pytest.raises(ValueError, match='--envs_per_actor=3: must be'):
    next(actors.measure('toy', runs.tiny().env, [1], [3], _LENGTH))
