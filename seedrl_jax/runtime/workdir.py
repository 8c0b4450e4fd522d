"""The work directory of a run: its files, their lock, and how to write them."""

import contextlib
import datetime
import errno
import fcntl
import importlib.metadata
import itertools
import json
import os
import pathlib
import platform
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Container, Mapping
from typing import IO, Any

import ml_collections

from seedrl_jax import types
from seedrl_jax.runtime import env_specs, settings

# Keys that a checkpoint depends on, so a resumed run cannot change them.
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
# Except for this, which the parameters' shapes show. Earlier releases lack it.
_FREE = ('network.categories',)
_PACKAGES = ('seedrl-jax', 'jax', 'jaxlib', 'envpool')
_ROOT = pathlib.Path(__file__).resolve().parents[2]
_GIT = ('git', 'describe', '--always', '--dirty', '--abbrev=40', '--exclude=*')
_Say = Callable[[str], None]


class WorkdirError(ValueError):
  """The work directory cannot be used."""


class NotWritten(RuntimeError):
  """A file could not be written, such as on a full disk."""


class Workdir:
  """Paths below one directory.

  Attributes:
    path: the directory, absolute.
    lock: names the process that uses the directory.
    config_json: the configuration of the latest start.
    env_spec_json: the spec of its environments.
    metrics_csv: one row per report.
    metrics_jsonl: one JSON object per report.
    summary_json: the results, written when a run ends.
    versions: the software of each start, one a line.
    checkpoints: one file per checkpoint, named by its update.
    replay: the replay's part of each checkpoint, with the same names.
    reverb: log and unfinished checkpoints of the run's Reverb server.
    actor_socket: socket for actors, unless addresses are configured.
    tensorboard: event files.
    profile: traces of `--profile`.
  """

  def __init__(self, path: str | os.PathLike[str], flag: str = '--workdir'):
    """Raises WorkdirError if `path` is a URL, as a run needs a file system."""
    if re.match(r'[A-Za-z][\w+.-]*://', os.fspath(path)):
      raise WorkdirError(
        f'{flag}={path} is a URL; give a folder of this machine, such as a '
        'disk or a mounted bucket, and copy it from there. On TPU VMs '
        '`launch/tpu_vm.sh train --backup=gs://…` does so.'
      )
    self.path = pathlib.Path(path).expanduser().absolute()
    self.lock = self.path / 'run.lock'
    self.config_json = self.path / 'config.json'
    self.env_spec_json = self.path / 'env_spec.json'
    self.metrics_csv = self.path / 'metrics.csv'
    self.metrics_jsonl = self.path / 'metrics.jsonl'
    self.summary_json = self.path / 'summary.json'
    self.versions = self.path / 'versions.jsonl'
    self.checkpoints = self.path / 'checkpoints'
    self.replay = self.path / 'replay'
    self.reverb = self.path / 'reverb'
    self.actor_socket = self.path / 'actors.sock'
    self.tensorboard = self.path / 'tensorboard'
    self.profile = self.path / 'profile'

  def of_host(self, index: int) -> 'Workdir':
    """Returns the directory of host `index`, below that of host 0."""
    return Workdir(self.path / 'hosts' / str(index)) if index else self

  def create(self) -> None:
    """Makes the directory; raises WorkdirError if it cannot be written to."""
    try:
      self.path.mkdir(parents=True, exist_ok=True)
      with tempfile.TemporaryFile(dir=self.path):
        pass
    except OSError as e:
      raise WorkdirError(
        f'--workdir={self.path} cannot be written to ({e.strerror}); choose a '
        'folder that you may write to.'
      ) from e

  def acquire(self, say: _Say) -> IO[bytes]:
    """Makes the directory and locks it.

    Returns a file that holds the lock until it is closed or the process ends,
    even by SIGKILL; child processes do not inherit it. `say` takes a sentence
    if the file system has no locks.

    Raises:
      WorkdirError: if the directory cannot be written to, or another process
        holds the lock.
    """
    self.create()
    # Appends: until the lock is ours, the text is another process'.
    file = self.lock.open('ab+', buffering=0)
    try:
      self._lock(file, say)
    except BaseException:
      file.close()
      raise
    return file

  def _lock(self, file: IO[bytes], say: _Say) -> None:
    try:
      fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError) as e:
      raise WorkdirError(
        f'--workdir={self.path} is in use by {_owner(file)}; stop that run, or '
        'choose another folder.'
      ) from e
    except OSError as e:
      say(
        f'--workdir={self.path} is not locked, as its file system cannot '
        f'({e.strerror}); make sure that no second run uses it.'
      )
      return
    file.truncate(0)
    # The disk may be full.
    with contextlib.suppress(OSError):
      file.write(f'{os.getpid()} {socket.gethostname()}\n'.encode())

  def read_config(self) -> ml_collections.ConfigDict:
    """Returns the configuration of the latest start.

    Raises:
      WorkdirError: if there is none, or it cannot be read.
    """
    try:
      return ml_collections.ConfigDict(json.loads(self.config_json.read_text()))
    except OSError as e:
      raise WorkdirError(
        f'--workdir={self.path} holds no run (no config.json); give the '
        'folder that a training run printed, or put the file back.'
      ) from e
    except (AttributeError, ValueError) as e:
      raise WorkdirError(
        f'{self.config_json} is damaged ({e}); put a good one back.'
      ) from e

  def read_env_spec(self) -> types.EnvSpec:
    """Returns the spec of the environments of the latest start.

    Raises:
      WorkdirError: if there is none, or it cannot be read.
    """
    try:
      return env_specs.from_json(json.loads(self.env_spec_json.read_text()))
    except OSError as e:
      raise WorkdirError(
        f'--workdir={self.path} has no env_spec.json; go on with its training '
        'for a moment, which writes it.'
      ) from e
    except (KeyError, TypeError, ValueError) as e:
      raise WorkdirError(
        f'{self.env_spec_json} is damaged ({e}); go on with the training for '
        'a moment, which writes a good one.'
      ) from e

  def write_env_spec(self, spec: types.EnvSpec) -> None:
    """Writes the spec of the environments; raises NotWritten."""
    write_json(self.env_spec_json, env_specs.to_json(spec))

  def write_config(self, config: ml_collections.ConfigDict) -> None:
    """Writes configuration and versions of this start; raises NotWritten."""
    write_json(self.config_json, config.to_dict())
    line = json.dumps(versions()) + '\n'
    try:
      append_whole(self.versions, line.encode())
    except OSError as e:
      raise NotWritten(
        f'{self.versions} could not be written ({e.strerror}).'
      ) from e


def _owner(file: IO[bytes]) -> str:
  file.seek(0)
  pid, _, host = file.read().decode(errors='replace').strip().partition(' ')
  if not pid:
    return 'another process'
  machine = '' if host == socket.gethostname() else f' on {host}'
  return f'process {pid}{machine}'


def put_aside(path: pathlib.Path) -> pathlib.Path:
  """Renames an unusable file, folder or link and returns the new path.

  'metrics.csv' becomes 'metrics.csv.damaged-1', or the next free number.
  """
  names = (
    path.with_name(f'{path.name}.damaged-{i}') for i in itertools.count(1)
  )
  target = next(name for name in names if not os.path.lexists(name))
  os.rename(path, target)
  return target


def remove(path: pathlib.Path) -> None:
  """Deletes a file, a folder, or a link but not what it points to."""
  if path.is_dir() and not path.is_symlink():
    shutil.rmtree(path)
  else:
    path.unlink(missing_ok=True)


def append_whole(path: pathlib.Path, data: bytes) -> None:
  """Appends `data` to a file, which is made if necessary.

  Raises:
    OSError: if not all of it fits; the file is then unchanged.
  """
  with path.open('ab', buffering=0) as f:
    size = f.tell()
    try:
      if f.write(data) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
      f.truncate(size)
      raise


def cut_last_line(path: pathlib.Path) -> None:
  """Cuts off a last line that was not written to its end."""
  # Works on a full disk.
  os.truncate(path, path.read_bytes().rfind(b'\n') + 1)


def write_whole(path: pathlib.Path, *parts: bytes) -> None:
  """Writes a file atomically.

  Raises:
    NotWritten: if it cannot be written.
  """
  temporary = path.with_name(path.name + '.tmp')
  try:
    # A killed process may have left one.
    temporary.unlink(missing_ok=True)
    # 'x' follows no link.
    with temporary.open('xb') as file:
      file.writelines(parts)
      file.flush()
      # Else a power cut could leave the new name without its contents.
      os.fsync(file.fileno())
    os.replace(temporary, path)
  except OSError as e:
    with contextlib.suppress(OSError):
      temporary.unlink(missing_ok=True)
    raise NotWritten(f'{path} could not be written ({e.strerror}).') from e


def write_json(path: pathlib.Path, value: Mapping[str, Any]) -> None:
  """Writes JSON atomically; raises NotWritten if it cannot."""
  text = json.dumps(value, indent=2, default=str) + '\n'
  write_whole(path, text.encode())


def check_resumable(
  old: ml_collections.ConfigDict, new: ml_collections.ConfigDict
) -> list[str]:
  """Returns the allowed changes of a configuration, as 'key: old -> new'.

  Raises:
    WorkdirError: if the checkpoint forbids a change; names all of them.
  """
  before, after = flat_config(old), flat_config(new)
  if after['env.factory']:
    # The id is then only the name that the factory's environment reports.
    after['env.id'] = before['env.id']
  changes: list[str] = []
  refused: list[str] = []
  for key in sorted(before.keys() | after.keys()):
    a, b = before.get(key), after.get(key)
    if a == b:
      continue
    text = f'{key}: {a} -> {b}'
    fixed = key not in _FREE and any(
      key == name or key.startswith(name + '.') for name in _FIXED
    )
    (refused if fixed else changes).append(text)
  if refused:
    raise WorkdirError(
      'The configuration does not fit the checkpoint in --workdir ('
      + '; '.join(refused)
      + '); undo that or start with another --workdir.'
    )
  return changes


def flat_config(
  config: ml_collections.ConfigDict, whole: Container[str] = ()
) -> dict[str, Any]:
  """Returns values, as in JSON, by dotted keys; sections in `whole` are one."""
  plain = json.loads(json.dumps(config.to_dict(), default=str))
  return dict(settings.leaves(plain, whole))


def versions() -> dict[str, str | None]:
  """Returns the time, the git commit and each package's version.

  A missing package's version is None, as is the commit outside a clone.
  """
  now = datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds')
  return {
    'time': now,
    'commit': _commit(_ROOT),
    'python': platform.python_version(),
    **{name: _version(name) for name in _PACKAGES},
  }


def _version(package: str) -> str | None:
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return None


def _commit(root: pathlib.Path) -> str | None:
  # Git would find the clone of another project around an installed package.
  if not (root / '.git').exists():
    return None
  try:
    return subprocess.run(
      _GIT, cwd=root, capture_output=True, check=True, text=True, timeout=2
    ).stdout.strip()
  except (OSError, subprocess.SubprocessError):
    return None
