"""Tests of what launch/benchmark.py says to a wrong command line."""

import pathlib
import subprocess
import sys

import pytest

_PROGRAM = pathlib.Path(__file__).parents[2] / 'launch/benchmark.py'


@pytest.mark.parametrize(
  ('arguments', 'sentence'),
  [
    ([], 'benchmark: say what to measure: one of ceilings, system, replay.'),
    (
      ['speed'],
      'benchmark: say what to measure: one of ceilings, system, replay.',
    ),
    (['system', '--case=pong'], 'There is no case pong; take one of free, '),
    (['system', '--windows=1'], '--windows=1'),
  ],
)
def test_wrong_command_line_is_told_in_a_sentence(arguments, sentence):
  done = subprocess.run(
    [sys.executable, _PROGRAM, *arguments],
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode != 0
  assert sentence in done.stderr
  assert 'Traceback' not in done.stderr
