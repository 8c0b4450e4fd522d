"""Tests of `seedrl_jax.lab.benchmarks.programs` on tiny networks."""

import re

import pytest

from seedrl_jax.configs import r2d2_catch
from seedrl_jax.lab.benchmarks import programs
from tests import runs


@pytest.mark.parametrize(
  ('config', 'names'),
  [
    (
      runs.tiny(r2d2_catch.get_config, network__lstm_size=4),
      [
        *('update', 'act 4, with copies', 'act 4', 'take core 4'),
        *('initial priorities', 'publish'),
      ],
    ),
    (
      runs.tiny(learner__micro_batches=2),
      [
        *('update: cut', 'update: accumulate (2 x)', 'update: finish'),
        *('act 4, with copies', 'act 4', 'publish'),
      ],
    ),
    # Two streams have two environments each.
    (
      runs.tiny(topology__max_devices=4, topology__inference_to_training='1:1'),
      ['update', 'act 2, with copies', 'act 2', 'publish'],
    ),
  ],
)
def test_every_program_of_a_run_is_timed(config, names):
  rows = list(programs.measure(config, 0.0))
  assert [row['program'] for row in rows] == names
  for row in rows:
    assert tuple(row) == programs.COLUMNS
    assert re.fullmatch(
      r'[\d.]+ \([\d.]+–[\d.]+\)', row['ms a call, median (min–max)']
    )
    assert row['calls'] == '5'
