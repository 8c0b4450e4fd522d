"""Finds a Python that the Reverb server's environment can be made from.

Called by `environment.py`. Every candidate is run before it is believed: a
pyenv shim is on PATH also where the version that it stands for is not chosen.
"""

import contextlib
import dataclasses
import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

FLAG = '--reverb_python'
VARIABLE = 'SEEDRL_REVERB_PYTHON'

# Newest first. dm-reverb 0.14.0 has no wheels for later ones, and its
# TensorFlow none for earlier ones.
_VERSIONS = ('3.11', '3.10', '3.9')

_PROBE = """
import importlib.util as u, json, platform
has = lambda *names: all(u.find_spec(n) is not None for n in names)
print(json.dumps([platform.python_version(), has('reverb', 'tensorflow'),
  has('venv', 'ensurepip')]))
"""


# Of uv's download of a Python, some 30 MB; without a network it gives up soon.
_UV_SECONDS = 120.0
_UV_LIMITS = {'UV_HTTP_TIMEOUT': '10', 'UV_HTTP_RETRIES': '1'}


class EnvironmentUnavailable(RuntimeError):
  """There is no Python to run a Reverb server with, and none can be made."""


class NoReverb(EnvironmentUnavailable):
  """No Reverb is published for this machine or for any Python that it has."""


@dataclasses.dataclass(frozen=True)
class Interpreter:
  """A Python that was run.

  Attributes:
    path: how to call it.
    version: as in '3.11.7'.
    has_reverb: whether it can import Reverb as it is.
    has_venv: whether it can make an environment with pip in it by itself.
  """

  path: str
  version: str
  has_reverb: bool
  has_venv: bool

  @property
  def fits(self) -> bool:
    """Whether there is a dm-reverb for it."""
    return self.version.rpartition('.')[0] in _VERSIONS


@functools.cache
def probe(path: str) -> Interpreter | None:
  """Runs an interpreter; returns what it is, None where it fails."""
  try:
    result = subprocess.run(
      [path, '-I', '-c', _PROBE],
      stdin=subprocess.DEVNULL,
      capture_output=True,
      text=True,
      timeout=60,
      check=True,
    )
    version, has_reverb, has_venv = json.loads(result.stdout)
  except (OSError, subprocess.SubprocessError, ValueError):
    return None
  return Interpreter(path, version, has_reverb, has_venv)


def find(python: str | None = None) -> Interpreter:
  """Returns the interpreter to run the server with or to make a venv from.

  Args:
    python: value of --reverb_python, which has the last word; where it is None
      or '', SEEDRL_REVERB_PYTHON does; else it is this Python, then
      python3.11, 3.10 and 3.9 on PATH, then what uv finds or downloads.

  Raises:
    EnvironmentUnavailable: in one sentence, what is missing and what to do.
  """
  for name, value in ((FLAG, python), (VARIABLE, os.environ.get(VARIABLE))):
    if value:
      return _named(name, value)
  bare = None
  for path in _candidates():
    found = probe(path)
    if found is None or not found.fits:
      continue
    if found.has_venv or _find_uv():
      return found
    bare = bare or found
  if bare is not None:
    raise _without_venv(bare)
  raise NoReverb(
    'Reverb needs a Python from 3.9 to 3.11, and there is none: install one '
    f'(or uv, which then does), or name one by {FLAG}.'
  )


def venv_command(base: Interpreter, folder: str) -> list[str]:
  """Returns the command that makes a venv with pip in `folder`."""
  if base.has_venv:
    return [base.path, '-I', '-m', 'venv', folder]
  return [str(_find_uv()), 'venv', '--seed', '--python', base.path, folder]


def _named(name: str, path: str) -> Interpreter:
  found = probe(path)
  if found is None:
    raise EnvironmentUnavailable(
      f'{name}={path}: this is no Python that runs; name one from 3.9 to 3.11.'
    )
  if found.has_reverb:
    return found
  if not found.fits:
    raise EnvironmentUnavailable(
      f'{name}={path}: this is Python {found.version}, and Reverb needs 3.9 '
      'to 3.11; name one of these.'
    )
  if not (found.has_venv or _find_uv()):
    raise _without_venv(found)
  return found


def _without_venv(found: Interpreter) -> EnvironmentUnavailable:
  short = found.version.rpartition('.')[0]
  return EnvironmentUnavailable(
    f'{found.path} (Python {found.version}) lacks venv or ensurepip: install '
    f'them (Debian and Ubuntu: the package python{short}-venv), or name '
    f'another by {FLAG}.'
  )


def _candidates() -> Iterator[str]:
  yield sys.executable
  for version in _VERSIONS:
    if path := shutil.which(f'python{version}'):
      yield path
  if uv := _find_uv():
    # The last resort, as it may download one.
    yield from _ask_uv(uv)


def _find_uv() -> str | None:
  """Returns uv: the one on PATH, or the one installed with this package."""
  beside = os.path.dirname(sys.executable)
  return shutil.which('uv') or shutil.which('uv', path=beside)


def _ask_uv(uv: str) -> list[str]:
  """Returns the Python that uv has or can download.

  Raises:
    NoReverb: it can do neither; says why.
  """
  try:
    with contextlib.suppress(subprocess.CalledProcessError):
      return _run_uv(uv, 'find')
    _run_uv(uv, 'install')
    return _run_uv(uv, 'find')
  except subprocess.TimeoutExpired:
    why = f'not within {_UV_SECONDS:g} s'
  except subprocess.CalledProcessError as e:
    why = e.stderr.strip().rpartition('\n')[2].strip().rstrip('.')
  raise NoReverb(
    'Reverb needs a Python from 3.9 to 3.11; there is none, and uv could not '
    f'download one ({why}): install one, or name one by {FLAG}.'
  )


def _run_uv(uv: str, action: str) -> list[str]:
  """Returns the lines of `uv python find|install`."""
  result = subprocess.run(
    [uv, 'python', action, _VERSIONS[0]],
    stdin=subprocess.DEVNULL,
    capture_output=True,
    text=True,
    env={**os.environ, **_UV_LIMITS},
    timeout=_UV_SECONDS,
    check=True,
  )
  return result.stdout.splitlines()
