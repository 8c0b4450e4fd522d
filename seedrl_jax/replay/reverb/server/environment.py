"""Makes the Python environment that the Reverb server runs in, once per user.

Called by `server.py`'s owners and by `launch/reverb_server.py`. The published
dm-reverb needs Python 3.11 at most, TensorFlow 2.15 and NumPy 1, none of which
can be had in the process that trains.

The environment is a venv in the cache folder, named by interpreter version and
requirements. It is built beside its place and renamed when it is complete; a
venv bears that as long as only its `bin/python` is called (the other scripts
in `bin` spell out the old path), and nobody else calls anything.
"""

import contextlib
import fcntl
import hashlib
import os
import pathlib
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import IO

from seedrl_jax.replay.reverb.server import interpreters
from seedrl_jax.replay.reverb.server.interpreters import EnvironmentUnavailable
from seedrl_jax.runtime import cache

# All that a server imports, for Python 3.9 to 3.11, installed without their
# dependencies: TensorFlow asks for TensorBoard, Keras and what they need, which
# no server touches; a third of the download and two thirds of the time.
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
  '--no-input',
  '--no-deps',
  '--no-compile',
  '--disable-pip-version-check',
  '--only-binary=:all:',
)

_Say = Callable[[str], None]


def folder(
  interpreter: interpreters.Interpreter,
  requirements: Sequence[str] = REQUIREMENTS,
) -> pathlib.Path:
  """Returns where the environment made from `interpreter` is, or would be."""
  recipe = '\n'.join([interpreter.version, *requirements])
  digest = hashlib.sha256(recipe.encode()).hexdigest()[:12]
  return cache.folder() / f'reverb-{digest}'


def python_of(environment: pathlib.Path) -> pathlib.Path | None:
  """Returns the interpreter of a complete environment, None without one."""
  python = environment / 'bin/python'
  # Not so where it was made from an interpreter that has been removed since.
  return python if python.exists() else None


def ensure(
  python: str | None = None,
  say: _Say | None = None,
  requirements: Sequence[str] = REQUIREMENTS,
) -> str:
  """Returns the path of a Python that can import Reverb, made where missing.

  Where the environment is there, nothing is downloaded nor installed.

  Args:
    python: value of --reverb_python: an interpreter that has Reverb, or one to
      make the environment from. None or '': see `interpreters.find`.
    say: takes the one line that is said before an environment is made; by
      default it goes to the standard error stream.
    requirements: what to install, as pip takes it.

  Raises:
    EnvironmentUnavailable: in one sentence, what is missing and what to do;
      `interpreters.NoReverb` if nothing that is here can have a Reverb.
  """
  _check_platform()
  found = interpreters.find(python)
  if found.has_reverb:
    return found.path
  place = folder(found, requirements)
  if made := python_of(place):
    return str(made)
  try:
    place.parent.mkdir(parents=True, exist_ok=True)
    with _locked(place, say or _say) as lock:
      # Another process may have made it while this one waited.
      if not python_of(place):
        _build(found, place, requirements, lock, say or _say)
  except OSError as e:
    raise EnvironmentUnavailable(
      f'The cache folder {place.parent} of the Reverb server cannot be used '
      f'({e.strerror}); set SEEDRL_CACHE to another.'
    ) from e
  return str(place / 'bin/python')


def versions(python: str) -> str:
  """Returns the versions of an interpreter and of what matters in it."""
  code = (
    'import importlib.metadata as m, platform;'
    'print("Python", platform.python_version(), *('
    'f", {n} {m.version(n)}" for n in ("dm-reverb", "tensorflow-cpu", "numpy")'
    ' if any(m.distributions(name=n))), sep="")'
  )
  result = subprocess.run(
    [python, '-I', '-c', code], capture_output=True, text=True, check=True
  )
  return result.stdout.strip().replace('Python', 'Python ', 1)


def _check_platform() -> None:
  # No other has a dm-reverb.
  if (sys.platform, platform.machine()) != ('linux', 'x86_64'):
    raise interpreters.NoReverb(
      f'Reverb is published for Linux on x86_64 only, not for {sys.platform} '
      f'on {platform.machine()}; use --config.replay.backend=embedded, or a '
      'server on another machine (--config.replay.address).'
    )


def _say(line: str) -> None:
  print(line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def _locked(place: pathlib.Path, say: _Say) -> Iterator[IO[str]]:
  with open(f'{place}.lock', 'w') as lock:
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      say(f'reverb: waiting for another process that makes {place}.')
      fcntl.flock(lock, fcntl.LOCK_EX)
    yield lock


def _build(
  base: interpreters.Interpreter,
  place: pathlib.Path,
  requirements: Sequence[str],
  lock: IO[str],
  say: _Say,
) -> None:
  say(
    f"reverb: making the server's environment in {place} with Python "
    f'{base.version}, once: about 30 s, 250 MB to download, 1 GB on disk.'
  )
  partial = place.with_name(f'{place.name}.partial')
  # What an interrupted build left. Its lock is gone, so its processes are too.
  shutil.rmtree(partial, ignore_errors=True)
  log_path = place.with_name(f'{place.name}.log')
  python = str(partial / 'bin/python')
  install = [python, '-I', '-m', 'pip', 'install', *_PIP_OPTIONS]
  try:
    with open(log_path, 'w') as log:
      for command in (
        interpreters.venv_command(base, str(partial)),
        [*install, *requirements],
        # Also compiles what a server imports, which saves the first its time.
        [python, '-I', '-c', 'import reverb'],
      ):
        _run(command, log, lock)
    # Of what an older, broken environment left.
    shutil.rmtree(place, ignore_errors=True)
    os.rename(partial, place)
  except BaseException:
    shutil.rmtree(partial, ignore_errors=True)
    raise


def _run(command: list[str], log: IO[str], lock: IO[str]) -> None:
  print('$', *command, file=log, flush=True)
  try:
    subprocess.run(
      command,
      check=True,
      stdin=subprocess.DEVNULL,
      stdout=log,
      stderr=subprocess.STDOUT,
      # A child that outlives this process keeps the lock, so that nobody
      # builds in the folder that it still writes to.
      pass_fds=[lock.fileno()],
    )
  except (OSError, subprocess.CalledProcessError) as e:
    what = 'pip install' if 'pip' in command else ' '.join(command[:4])
    raise EnvironmentUnavailable(
      "The Reverb server's environment could not be made: "
      f'"{what}" failed, as {log.name} tells; mend that, or name a Python that '
      f'has dm-reverb by {interpreters.FLAG}.'
    ) from e
