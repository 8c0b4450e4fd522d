"""Python environments for other programs, each made once per user.

An environment is a venv in the cache folder, named by its recipe, built beside
its final path and then renamed. Only its `bin/python` survives that; scripts in
`bin` contain the old path.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from typing import IO

from seedrl_jax.runtime import process

_PIP = ('-I', '-m', 'pip', 'install', '--no-input', '--no-compile')

Say = Callable[[str], None]


class BuildFailed(RuntimeError):
  """A command failed.

  Attributes:
    command: the command in a few words.
    log: path of what all commands wrote.
  """

  def __init__(self, command: str, log: str, why: str):
    super().__init__(f'"{command}" failed, as {log} tells: {why}')
    self.command = command
    self.log = log


@dataclasses.dataclass(frozen=True)
class Recipe:
  """What an environment is made of.

  Attributes:
    name: begins the folder's name.
    base: path of the Python to make it from.
    version: tells that Python from others.
    requirements: as pip takes them.
    options: of pip.
    check: statements that must run in the environment.
  """

  name: str
  base: str
  version: str
  requirements: Sequence[str]
  options: Sequence[str]
  check: str

  @property
  def folder(self) -> pathlib.Path:
    """Path of the environment."""
    text = '\n'.join([self.version, *self.requirements])
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return process.cache_folder() / f'{self.name}-{digest}'


def ensure(recipe: Recipe, notice: str, say: Say) -> str:
  """Returns the path of the environment's Python, made if missing.

  Args:
    notice: what to say before it is made.

  Raises:
    BuildFailed: if it cannot be made.
    OSError: if the cache folder cannot be used.
  """
  place = recipe.folder
  python = place / 'bin/python'
  if not python.exists():
    place.parent.mkdir(parents=True, exist_ok=True)
    with _locked(place, say) as lock:
      # Another process may have made it meanwhile.
      if not python.exists():
        say(notice)
        _build(recipe, lock)
  return str(python)


@contextlib.contextmanager
def _locked(place: pathlib.Path, say: Say) -> Iterator[IO[str]]:
  with open(f'{place}.lock', 'w') as lock:
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      say(f'waiting for another process that makes {place}.')
      fcntl.flock(lock, fcntl.LOCK_EX)
    yield lock


def _build(recipe: Recipe, lock: IO[str]) -> None:
  place = recipe.folder
  partial = place.with_name(f'{place.name}.partial')
  # Left by an interrupted build, which has ended, as we hold its lock.
  shutil.rmtree(partial, ignore_errors=True)
  python = str(partial / 'bin/python')
  try:
    with open(place.with_name(f'{place.name}.log'), 'w+') as log:
      for command in (
        [recipe.base, '-I', '-m', 'venv', str(partial)],
        [python, *_PIP, *recipe.options, *recipe.requirements],
        # Also compiles it, for a faster first start.
        [python, '-I', '-c', recipe.check],
      ):
        _run(command, log, lock)
    # An older environment may be broken.
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
      # A child that outlives us keeps the lock, so that no other process builds
      # in a folder that it still writes to.
      pass_fds=[lock.fileno()],
    )
  except (OSError, subprocess.CalledProcessError) as e:
    what = 'pip install' if 'pip' in command else ' '.join(command[:4])
    raise BuildFailed(what, log.name, _last_line(log)) from e


def _last_line(log: IO[str]) -> str:
  log.seek(0)
  lines = [line.strip() for line in log if line.strip()]
  # pip may end with a notice about itself.
  errors = [line for line in lines if line.startswith('ERROR:')]
  return (errors or lines)[-1]
