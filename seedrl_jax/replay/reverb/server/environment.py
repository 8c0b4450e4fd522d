"""Makes the Reverb server's Python environment, once per user.

dm-reverb needs Python 3.11 or older, TensorFlow 2.15 and NumPy 1, unlike the
trainer.
"""

import contextlib
import dataclasses
import functools
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence

from seedrl_jax.runtime import process, virtual_env

FLAG = '--reverb_python'
# The same as an environment variable.
VARIABLE = 'SEEDRL_REVERB_PYTHON'

# Newest first; dm-reverb 0.14.0 and its TensorFlow have wheels for these only.
_VERSIONS = ('3.11', '3.10', '3.9')

# All that a server imports, installed without dependencies: TensorBoard, Keras
# and the like are a third of the download and two thirds of the time.
REQUIREMENTS = (
  'absl-py==2.3.1',
  'astunparse==1.6.3',
  'certifi==2026.10.18',
  'charset-normalizer==3.5.2',
  'dm-reverb==0.14.0',
  'dm-tree==0.1.8',
  'flatbuffers==25.12.19',
  'gast==0.7.0',
  'google-pasta==0.2.0',
  'idna==3.20',
  'ml-dtypes==0.3.2',
  'numpy==1.26.4',
  'opt_einsum==3.4.0',
  'packaging==26.3',
  'portpicker==1.6.0',
  'protobuf==4.25.9',
  'psutil==7.2.2',
  'requests==2.32.5',
  'six==1.17.0',
  'tensorflow-cpu==2.15.1',
  'termcolor==3.1.0',
  'typing_extensions==4.16.0',
  'urllib3==2.6.3',
  'wrapt==1.14.2',
)

_PIP_OPTIONS = (
  '--no-deps',
  '--disable-pip-version-check',
  '--only-binary=:all:',
)

# Prints the version, and whether it has Reverb.
_PROBE = """
import importlib.util as u, json, platform
has = all(u.find_spec(name) for name in ('reverb', 'tensorflow'))
print(json.dumps([platform.python_version(), has]))
"""
_PROBE_SECONDS = 60.0

# For a Python of about 30 MB; without a network uv gives up early.
_UV_SECONDS = 120.0
_UV_LIMITS = {'UV_HTTP_TIMEOUT': '10', 'UV_HTTP_RETRIES': '1'}


class EnvironmentUnavailable(RuntimeError):
  """No Python can run a Reverb server, and none can be made."""


class NoReverb(EnvironmentUnavailable):
  """Reverb is not published for this machine or for any Python on it."""


@dataclasses.dataclass(frozen=True)
class Interpreter:
  """A Python that runs.

  Attributes:
    version: as in '3.11.7'.
    has_reverb: whether it can import Reverb.
  """

  path: str
  version: str
  has_reverb: bool

  @property
  def fits(self) -> bool:
    """Whether dm-reverb is published for it."""
    return self.version.rpartition('.')[0] in _VERSIONS


def ensure(
  python: str | None = None, requirements: Sequence[str] = REQUIREMENTS
) -> str:
  """Returns the path of a Python that can import Reverb, made if missing.

  Args:
    python: see `find`.
    requirements: as pip takes them.

  Raises:
    EnvironmentUnavailable: if there is none, with the remedy; `NoReverb` if
      this machine can have none.
  """
  # dm-reverb has wheels for no other.
  if (sys.platform, platform.machine()) != ('linux', 'x86_64'):
    raise NoReverb(
      f'Reverb is published for Linux on x86_64 only, not for {sys.platform} '
      f'on {platform.machine()}; use --config.replay.backend=embedded, or a '
      'server on another machine (--config.replay.address).'
    )
  found = find(python)
  if found.has_reverb:
    return found.path
  wanted = recipe(found, requirements)
  notice = (
    f"making the server's environment in {wanted.folder} with Python "
    f'{found.version}, once: about 30 s, 250 MB to download, 1 GB on disk.'
  )
  try:
    return virtual_env.ensure(wanted, notice, _say)
  except OSError as e:
    raise EnvironmentUnavailable(
      f'The cache folder {wanted.folder.parent} of the Reverb server cannot be '
      f'used ({e.strerror}); set SEEDRL_CACHE to another.'
    ) from e
  except virtual_env.BuildFailed as e:
    raise EnvironmentUnavailable(
      "The Reverb server's environment could not be made: "
      f'"{e.command}" failed, as {e.log} tells; mend that (if venv fails on '
      'Debian or Ubuntu: apt install python3-venv), or name a Python that has '
      f'dm-reverb by {FLAG}.'
    ) from e


def find(python: str | None = None) -> Interpreter:
  """Returns the interpreter to run the server with or to make a venv from.

  Args:
    python: value of --reverb_python. If empty: SEEDRL_REVERB_PYTHON, else this
      Python, then python3.11, 3.10 and 3.9 on PATH, then uv's.

  Raises:
    EnvironmentUnavailable: with the remedy, if there is none.
  """
  if named := python or os.environ.get(VARIABLE):
    found = _probe(named)
    if found is not None and (found.has_reverb or found.fits):
      return found
    what = f'Python {found.version}' if found else 'no Python that runs'
    raise EnvironmentUnavailable(
      f'{FLAG}={named}: this is {what}, and Reverb needs one from 3.9 to 3.11; '
      'name such.'
    )
  for path in _candidates():
    found = _probe(path)
    if found is not None and found.fits:
      return found
  raise NoReverb(
    'Reverb needs a Python from 3.9 to 3.11, and there is none: install one '
    f'(or uv, which then does), or name one by {FLAG}.'
  )


def recipe(
  interpreter: Interpreter, requirements: Sequence[str] = REQUIREMENTS
) -> virtual_env.Recipe:
  """Returns the recipe of the environment made from `interpreter`."""
  return virtual_env.Recipe(
    name='reverb',
    base=interpreter.path,
    version=interpreter.version,
    requirements=requirements,
    options=_PIP_OPTIONS,
    check='import reverb',
  )


@functools.cache
def _probe(path: str) -> Interpreter | None:
  """Runs an interpreter; returns None if it fails, as a pyenv shim may."""
  try:
    result = subprocess.run(
      [path, '-I', '-c', _PROBE],
      stdin=subprocess.DEVNULL,
      capture_output=True,
      text=True,
      timeout=_PROBE_SECONDS,
      check=True,
    )
    return Interpreter(path, *json.loads(result.stdout))
  except (OSError, subprocess.SubprocessError, ValueError):
    return None


def _candidates() -> Iterator[str]:
  yield sys.executable
  for version in _VERSIONS:
    if path := shutil.which(f'python{version}'):
      yield path
  beside = os.path.dirname(sys.executable)
  if uv := shutil.which('uv') or shutil.which('uv', path=beside):
    # Last, as it may download one.
    yield _python_of_uv(uv)


def _python_of_uv(uv: str) -> str:
  """Returns the Python that uv has or downloads; raises NoReverb if none."""
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


def _run_uv(uv: str, action: str) -> str:
  result = subprocess.run(
    [uv, 'python', action, _VERSIONS[0]],
    stdin=subprocess.DEVNULL,
    capture_output=True,
    text=True,
    env={**os.environ, **_UV_LIMITS},
    timeout=_UV_SECONDS,
    check=True,
  )
  return result.stdout.strip()


def _say(line: str) -> None:
  process.write(sys.stderr, f'reverb: {line}\n')
