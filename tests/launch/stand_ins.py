"""Stand-ins for programs, and checks, for tests of the scripts."""

import pathlib
import sys

from tests import runs

ROOT = runs.ROOT


def add_program(folder: pathlib.Path, name: str, text: str) -> None:
  """Writes a program; PYTHON in its first line becomes this Python."""
  path = folder / name
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(text.replace('PYTHON', sys.executable, 1))
  path.chmod(0o755)


def check_flags(program: str, *arguments: str) -> None:
  """Fails if a program does not know a flag, or the configuration a key."""
  name = pathlib.Path(program).stem
  result = runs.call(name, *arguments, '--only_check_args')
  assert result.returncode == 0, result.stderr
