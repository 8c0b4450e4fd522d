"""Tests of `seedrl_jax.benchmarks.modes`."""

from seedrl_jax.benchmarks import modes
from tests import runs


def test_measures_one_mode_after_the_other():
  config = runs.tiny(total_env_frames=10**9)
  rows = list(modes.measure('toy', config, 1, 4, 2, 0.5, 0.0))
  assert [row['inference'] for row in rows] == ['central', 'local']
  lines = [*modes.header(), *map(modes.line, rows)]
  assert len({line.count('|') for line in lines}) == 1
  for row in rows:
    assert row['frames']['median'] > 0
    assert row['updates_per_second'] > 0
    assert 0 <= row['lag_mean'] <= row['lag_max']
  central, local = rows
  # Unrolls go through the learner, and past it.
  assert central['store_bytes_per_second'] == 0
  assert local['store_bytes_per_second'] > 0
  # A step of Catch takes 200 bytes and more.
  assert central['stream_bytes_per_second'] > 200 * central['frames']['minimum']
