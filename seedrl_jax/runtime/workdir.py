"""The work directory of a run: its files' names, its configuration.

Everything that a run leaves behind lies here; starting again with the same
directory resumes. `system`, `evaluate` and `plot` find files through this.
"""

import contextlib
import errno
import itertools
import json
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import ml_collections

# What a checkpoint's parameters depend on: a resumed run cannot change it.
_FIXED = (
  'agent',
  'env.id',
  'env.factory',
  'env.stack_num',
  'network',
  'optimizer.name',
  'optimizer.rmsprop_centered',
  'optimizer.rmsprop_momentum',
)
# Without which a configuration is none of a run's.
_PARTS = {'agent': str, 'env': dict, 'network': dict}


class WorkdirError(ValueError):
  """The work directory does not fit what is asked of it."""


class NotWritten(RuntimeError):
  """A file could not be written, as on a full disk; one sentence."""


class Workdir:
  """Paths below one directory."""

  def __init__(self, path: str | os.PathLike[str], flag: str = '--workdir'):
    """Names the directory; `create` makes it.

    Raises:
      WorkdirError: if it is a URL. Locks, sockets, curves that grow and
        Reverb's checkpoints need a file system.
    """
    if re.match(r'[A-Za-z][\w+.-]*://', os.fspath(path)):
      raise WorkdirError(
        f'{flag}={path} is a URL; give a folder of this machine, such as a '
        'disk or a bucket that is mounted, and copy it from there. On TPU VMs '
        '`launch/tpu_vm.sh train --backup=gs://…` does so.'
      )
    self.path = pathlib.Path(path).expanduser().absolute()

  def of_host(self, index: int) -> 'Workdir':
    """Returns where host `index` keeps what is its own: host 0 here.

    The others have folders below, which a shared disk may hold together.
    """
    return Workdir(self.path / 'hosts' / str(index)) if index else self

  @property
  def lock(self) -> pathlib.Path:
    """Names the process that has the directory; see `lock.acquire`."""
    return self.path / 'run.lock'

  @property
  def config_json(self) -> pathlib.Path:
    """The configuration of the latest start."""
    return self.path / 'config.json'

  @property
  def metrics_csv(self) -> pathlib.Path:
    """A row for every report."""
    return self.path / 'metrics.csv'

  @property
  def summary_json(self) -> pathlib.Path:
    """What came out, written when a run ends."""
    return self.path / 'summary.json'

  @property
  def versions_json(self) -> pathlib.Path:
    """Which software each start of the run had; see `versions`."""
    return self.path / 'versions.json'

  @property
  def checkpoints(self) -> pathlib.Path:
    """One folder for each checkpoint, named by its update."""
    return self.path / 'checkpoints'

  @property
  def replay(self) -> pathlib.Path:
    """The replay's part of the checkpoints, named as these."""
    return self.path / 'replay'

  @property
  def reverb(self) -> pathlib.Path:
    """Log and unfinished checkpoints of the run's Reverb server."""
    return self.path / 'reverb'

  @property
  def actor_socket(self) -> pathlib.Path:
    """Where actors find the learner, unless it has other addresses."""
    return self.path / 'actors.sock'

  @property
  def tensorboard(self) -> pathlib.Path:
    """Event files."""
    return self.path / 'tensorboard'

  @property
  def profile(self) -> pathlib.Path:
    """Traces of `--profile`."""
    return self.path / 'profile'

  def create(self) -> None:
    """Makes the directory, or checks that it can be written to.

    Raises:
      WorkdirError: where that is not possible.
    """
    try:
      self.path.mkdir(parents=True, exist_ok=True)
      with tempfile.TemporaryFile(dir=self.path):
        pass
    except OSError as e:
      raise WorkdirError(
        f'--workdir={self.path} cannot be written to ({e.strerror}); choose a '
        'folder that you may write to.'
      ) from e

  def clear(self, say: Callable[[str], None]) -> None:
    """Puts aside what is a file instead of a folder, or the reverse.

    `metrics` does so with the curves.

    Args:
      say: takes a sentence for each.

    Raises:
      WorkdirError: if a folder is a link to nothing, as to a disk that is not
        mounted: a run that began anew would take back the curves.
    """
    for path in (self.config_json, self.summary_json):
      clear_for_file(path, say)
    for path in (self.checkpoints, self.replay, self.reverb, self.profile):
      if path.is_symlink() and not path.exists():
        raise WorkdirError(
          f'{path} is a link to nothing; mount what it points to, or remove it.'
        )
      if path.exists() and not path.is_dir():
        say(f'{path} is no folder; it is now {put_aside(path).name}.')

  def read_config(self) -> ml_collections.ConfigDict:
    """Returns the configuration that the directory's run was started with.

    Raises:
      WorkdirError: where there is none, or it cannot be read.
    """
    try:
      value = json.loads(self.config_json.read_text())
      if not isinstance(value, dict) or not all(
        isinstance(value.get(name), kind) for name, kind in _PARTS.items()
      ):
        raise ValueError('it holds something else')
      return ml_collections.ConfigDict(value)
    except OSError as e:
      raise WorkdirError(
        f'--workdir={self.path} holds no run (no config.json); give the '
        'folder that a training run printed.'
      ) from e
    except (ValueError, RecursionError) as e:
      raise WorkdirError(f'{self.config_json} is damaged ({e}).') from e

  def write_config(self, config: ml_collections.ConfigDict) -> None:
    """Writes the configuration of this start.

    Raises:
      NotWritten: in one sentence.
    """
    write_json(self.config_json, config.to_dict())


def put_aside(path: pathlib.Path) -> pathlib.Path:
  """Renames what cannot be used, so that nothing is lost.

  Args:
    path: of a file, a folder or a symbolic link, which stays one.

  Returns:
    Where it is now: 'metrics.csv' becomes 'metrics.csv.damaged-1', or the next
    number that is free.
  """
  names = (
    path.with_name(f'{path.name}.damaged-{i}') for i in itertools.count(1)
  )
  target = next(name for name in names if not os.path.lexists(name))
  os.rename(path, target)
  return target


def clear_for_file(path: pathlib.Path, say: Callable[[str], None]) -> None:
  """Puts aside what is at `path` and no file of its own, and says so."""
  if path.is_symlink() or (path.exists() and not path.is_file()):
    say(f'{path} is no file; it is now {put_aside(path).name}.')


def remove(path: pathlib.Path) -> None:
  """Deletes a file, a folder, or a link but not what it points to.

  In a folder, a file that others delete meanwhile is no error.
  """
  if path.is_dir() and not path.is_symlink():
    shutil.rmtree(path, ignore_errors=True)
  else:
    path.unlink(missing_ok=True)


def append_whole(path: pathlib.Path, data: bytes) -> None:
  """Appends `data` to a file, which may be new.

  Raises:
    OSError: if not all of it fits; the file then is as it was.
  """
  with path.open('ab', buffering=0) as f:
    size = f.tell()
    try:
      if f.write(data) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
      f.truncate(size)
      raise


def write_json(path: pathlib.Path, value: Mapping[str, Any]) -> None:
  """Writes JSON so that the file is never seen half-written.

  Raises:
    NotWritten: in one sentence.
  """
  text = json.dumps(value, indent=2, default=str) + '\n'
  temporary = path.with_name(path.name + '.tmp')
  try:
    if temporary.is_dir():
      put_aside(temporary)
    # Of a process that was killed.
    temporary.unlink(missing_ok=True)
    # 'x' follows no link.
    with temporary.open('x') as file:
      file.write(text)
    os.replace(temporary, path)
  except OSError as e:
    with contextlib.suppress(OSError):
      temporary.unlink(missing_ok=True)
    raise NotWritten(f'{path} could not be written ({e.strerror}).') from e


def check_resumable(
  old: ml_collections.ConfigDict, new: ml_collections.ConfigDict
) -> list[str]:
  """Compares a run's configuration with the one it is resumed with.

  Args:
    old: of the work directory.
    new: of this start.

  Returns:
    Changes that a resumed run can follow, as 'key: old -> new'.

  Raises:
    WorkdirError: naming every difference that the checkpoint cannot follow.
  """
  before, after = flat_config(old), flat_config(new)
  if after['env.factory']:
    # Then it is only the name that the factory's environment was found to have.
    after['env.id'] = before['env.id']
  changes: list[str] = []
  refused: list[str] = []
  for key in sorted(before.keys() | after.keys()):
    a, b = before.get(key), after.get(key)
    if a == b:
      continue
    text = f'{key}: {a} -> {b}'
    fixed = any(key == name or key.startswith(name + '.') for name in _FIXED)
    (refused if fixed else changes).append(text)
  if refused:
    raise WorkdirError(
      'The configuration does not fit the checkpoint in --workdir ('
      + '; '.join(refused)
      + '); undo that or start with another --workdir.'
    )
  return changes


def flat_config(config: ml_collections.ConfigDict) -> dict[str, Any]:
  """Returns a configuration by dotted keys, with values as JSON has them."""
  return _flatten(json.loads(json.dumps(config.to_dict(), default=str)))


def _flatten(value: Any, prefix: str = '') -> dict[str, Any]:
  if not isinstance(value, dict):
    return {prefix: value}
  flat: dict[str, Any] = {}
  for key, item in value.items():
    flat.update(_flatten(item, f'{prefix}.{key}' if prefix else key))
  return flat
