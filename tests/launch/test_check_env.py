"""Tests for launch/check_env.py as a program."""

import pytest

from tests import runs


@pytest.mark.parametrize(
  ('bad_after', 'code', 'words'),
  [(99, 0, 'Faults: 0; warnings: 0.'), (9, 1, 'a reward of nan, which')],
)
def test_exit_code_says_whether_there_is_a_fault(bad_after, code, words):
  kwargs = {'bad_after': bad_after, 'failure': 'nan'}
  result = runs.call(
    'check_env',
    '--config.env.factory=tests.runs:pixels',
    f'--config.env.factory_kwargs={kwargs}',
    '--episodes=3',
  )
  assert (result.returncode, result.stderr) == (code, '')
  assert result.stdout.startswith('tests.runs:pixels: 18 steps in 3 ')
  assert words in result.stdout
