"""Tests the names of metrics, which the README lists."""

import pathlib
import re

from seedrl_jax.runtime import columns

_README = pathlib.Path(__file__).resolve().parents[2] / 'README.md'


def test_readme_has_all_names():
  rows = re.findall(r'^\| `(\w+/)` \|(.*)\|$', _README.read_text(), re.M)
  names = [
    group + n for group, text in rows for n in re.findall('`(.*?)`', text)
  ]
  assert sorted(names) == sorted(columns.TABLE)


def test_units_end_the_names():
  ends = {'s': '_s', 'bytes': '_bytes', '0..1': '_share', 'frames/s': '_per_s'}
  ends |= {name: name for name in ('frames', 'steps', 'updates', 'unrolls')}
  for name, column in columns.TABLE.items():
    assert name.endswith(ends.get(column.unit, '')), name


def test_metric_without_a_group_is_the_losses():
  assert columns.of_metric('entropy') == 'losses/entropy'
  assert columns.of_metric('replay/priority_mean') == 'replay/priority_mean'
