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


def _run(
  code: str, *shell: str, **variables: str
) -> subprocess.CompletedProcess[str]:
  return subprocess.run(
    [*shell, sys.executable, '-c', f'{_START}{code}\nprogram.run(main)'],
    env=runs.environment_of(variables),
    capture_output=True,
    text=True,
    check=False,
  )


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
  ended = _run(code)
  assert ended.returncode == returncode
  assert 'red: \\x1b[31m\n\t\\x07end\n' in ended.stderr
  assert '\x1b' not in ended.stderr


def test_characters_that_an_encoding_lacks_are_escaped():
  ended = _run("def main(argv): print('5 ± 1')", PYTHONIOENCODING='ascii')
  assert ended.stdout == '5 \\xb1 1\n'


def test_outputs_that_are_closed_take_no_file(tmp_path):
  path = tmp_path / 'file'
  code = f'def main(argv): f = open({str(path)!r}, "w"); print(text)'
  ended = _run(code, 'sh', '-c', 'exec "$@" >&- 2>&-', 'sh')
  assert (ended.returncode, path.read_text()) == (0, '')
