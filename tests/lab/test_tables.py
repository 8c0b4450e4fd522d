"""Tests of `seedrl_jax.lab.tables`."""

import pytest

from seedrl_jax.lab import tables


def test_table_has_the_columns_of_its_rows(capsys):
  tables.show({'case': str(i), 'steps/s': '1,000'} for i in range(2))
  assert capsys.readouterr().out.split('\n') == [
    '',
    '| case | steps/s |',
    '| --- | --- |',
    '| 0 | 1,000 |',
    '| 1 | 1,000 |',
    '',
  ]


def test_spread_is_the_median_and_both_ends():
  assert tables.spread([1000.0, 3.0, 20.0]) == '20 (3–1,000)'
  assert tables.spread([0.5, 1.5], 2) == '1.00 (0.50–1.50)'


@pytest.mark.parametrize(
  ('seconds', 'text'),
  [
    ((0.0,), '0 s'),
    ((99.6,), '100 s'),
    ((150.0, 300.0), '2.5–5 min'),
    ((6780.0, 6780.0), '113 min'),
    ((11880.0,), '3.3 h'),
  ],
)
def test_durations_have_the_unit_that_fits(seconds, text):
  assert tables.duration(*seconds) == text
