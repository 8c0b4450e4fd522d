"""Tests of launch/benchmark.py on tiny cases, and of its refusals."""

import re

import pytest

from tests import runs


@pytest.mark.parametrize(
  ('arguments', 'sentence'),
  [
    (
      [],
      'benchmark: say what to measure: one of ceilings, system, replay, '
      'actors.',
    ),
    (['system', '--case=pong'], 'There is no case pong; take one of free, '),
    (['system', '--windows=1'], '--windows=1'),
    (['system', '--backend=redis'], '--backend=redis'),
    (
      ['actors', '--case=free'],
      'There is no case free; take one of cartpole, ',
    ),
    (['replay', '--case=pong'], '--case=pong: replay has clients, r2d2.'),
  ],
)
def test_wrong_command_line_is_told_in_a_sentence(arguments, sentence):
  done = runs.call('benchmark', *arguments)
  assert done.returncode != 0
  assert sentence in done.stderr
  assert 'Traceback' not in done.stderr


def _lines(*arguments: str) -> list[str]:
  """Returns the printed lines."""
  done = runs.call('benchmark', *arguments, '--seconds=0.05')
  assert done.returncode == 0, done.stderr
  return done.stdout.splitlines()


@pytest.mark.usefixtures('server_python')
def test_a_case_is_measured_on_one_store_after_the_other():
  lines = _lines(
    'ceilings', '--case=cartpole32', '--backend=reverb', '--backend=embedded'
  )
  titles = [line for line in lines if line.startswith('cartpole32')]
  assert titles == ['cartpole32 (reverb store)', 'cartpole32 (embedded store)']
  stages = [line for line in lines if line.startswith('| store | ')]
  # Over a network, and within this process: the worst and the best window, as
  # some may have stalled.
  over, within = (
    [int(x.replace(',', '')) for x in re.findall(r'[\d,]+(?=[–)])', line)]
    for line in stages
  )
  assert 0 < over[0] < within[1]


def test_remote_environments_are_timed_against_local_ones():
  lines = _lines('actors', '--case=cartpole', '--actors=1')
  rows = [line for line in lines if line.startswith('| cartpole')]
  for row, expected in zip(
    rows,
    ['unix | 0 x', 'tcp | 0 x', 'unix | 1 x', 'tcp | 1 x'],
    strict=True,
  ):
    assert f' B | {expected} 16 |' in row
    share, median, p99 = row.strip('| ').split(' | ')[-3:]
    assert share.endswith('%') == ('1 x' in row)
    assert 0 < float(median) <= float(p99)
