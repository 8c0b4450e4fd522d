"""Stand-ins for programs, and checks, for tests of the scripts."""

import pathlib
import shutil
import subprocess
import sys

from tests import runs

ROOT = runs.ROOT


def add_program(folder: pathlib.Path, name: str, text: str) -> None:
  """Writes a program; PYTHON in its first line becomes this Python."""
  path = folder / name
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(text.replace('PYTHON', sys.executable, 1))
  path.chmod(0o755)


def check_shell_script(name: str) -> None:
  """Fails if bash cannot parse a script, or if shellcheck, if here, objects."""
  path = str(ROOT / name)
  subprocess.run(['bash', '-n', path], check=True)
  if shellcheck := shutil.which('shellcheck'):
    subprocess.run([shellcheck, path], check=True)


def check_flags(program: str, *arguments: str) -> None:
  """Fails if a program does not know a flag, or the configuration a key."""
  name = pathlib.Path(program).stem
  result = runs.call(name, *arguments, '--only_check_args')
  assert result.returncode == 0, result.stderr
