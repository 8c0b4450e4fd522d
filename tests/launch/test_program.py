"""Tests for launch/program.py, in processes."""

import subprocess
import sys

import pytest

from tests import runs

_START = """
import sys
from absl import logging
from seedrl_jax.launch import program

text = 'red: \\x1b[31m\\n\\t\\x07end'
"""


@pytest.mark.parametrize(
  ('code', 'returncode'),
  [
    ('def main(argv): sys.exit(text)', 1),
    ('def main(argv): raise ValueError(text)', 1),
    ('def main(argv): logging.error(text)', 0),
    (
      'from seedrl_jax.runtime import process\n'
      'def main(argv): process.exit_now(text)',
      1,
    ),
  ],
)
def test_no_text_of_others_controls_the_terminal(code, returncode):
  ended = subprocess.run(
    [sys.executable, '-c', f'{_START}{code}\nprogram.run(main)'],
    env=runs.environment_of({}),
    capture_output=True,
    text=True,
    check=False,
  )
  assert ended.returncode == returncode
  assert 'red: \\x1b[31m\n\t\\x07end\n' in ended.stderr
  assert '\x1b' not in ended.stderr
