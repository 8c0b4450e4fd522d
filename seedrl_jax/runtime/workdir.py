"""The work directory of a run: its files, their lock, and how to write them."""

import contextlib
import datetime
import fcntl
import importlib.metadata
import io
import json
import os
import pathlib
import platform
import re
import socket
import subprocess
from collections.abc import Callable, Mapping

import ml_collections

from seedrl_jax import types
from seedrl_jax.runtime import env_specs, file_io, settings

# Keys that any reader of a configuration needs. A run of an earlier release may
# lack others.
_NEEDED = {
  'agent': settings.TEXT,
  'seed': settings.integer(0),
  'total_env_frames': settings.integer(1),
  'num_eval_envs': settings.integer(0),
  'env.id': settings.TEXT,
  'env.factory': settings.TEXT,
}
# Values of keys that runs of earlier releases lack.
_DEFAULTS = {
  'env.action_mask': '',
  'env.task_weights': (),
  'env.tasks': (),
  'network.categories': 'on',
  'network.normalize_pixels': False,
  'network.use_action_mask': False,
  'network.use_task': False,
  'optimizer.decay_frames': None,
  'optimizer.warmup_frames': 0,
}
# Those whose versions each start notes.
_PACKAGES = ('seedrl-jax', 'jax', 'jaxlib', 'envpool')
_ROOT = pathlib.Path(__file__).resolve().parents[2]
_GIT = ('git', 'describe', '--always', '--dirty', '--abbrev=40', '--exclude=*')
# More than a process's id and the name of its machine.
_MOST_BYTES = 1000


class WorkdirError(ValueError):
  """The work directory cannot be used."""


class Workdir:
  """Paths below one directory, `path`, which is absolute."""

  def __init__(self, path: str | os.PathLike[str], flag: str = '--workdir'):
    """Raises WorkdirError if `path` is a URL, as a run needs a file system."""
    if re.match(r'[A-Za-z][\w+.-]*://', os.fspath(path)):
      raise WorkdirError(
        f'{flag}={path} is a URL; give a folder of this machine, such as a '
        'disk or a mounted bucket, and copy it from there. On TPU VMs '
        '`launch/tpu_vm.sh train --backup=gs://…` does so.'
      )
    self.path = pathlib.Path(path).expanduser().absolute()
    self.lock = self.path / 'run.lock'  # names the process that has it
    # Configuration, environments' spec and software of the latest start; of the
    # software, each start has a line.
    self.config_json = self.path / 'config.json'
    self.env_spec_json = self.path / 'env_spec.json'
    self.versions = self.path / 'versions.jsonl'
    self.metrics_csv = self.path / 'metrics.csv'  # a row per report
    self.metrics_jsonl = self.path / 'metrics.jsonl'  # an object per report
    self.summary_json = self.path / 'summary.json'  # results, at the end
    # A file per checkpoint, named by its update, and its replay's folder.
    self.checkpoints = self.path / 'checkpoints'
    # The one that was evaluated best, if it is to be kept.
    self.best = self.path / 'best'
    self.replay = self.path / 'replay'
    self.reverb = self.path / 'reverb'  # log and unfinished checkpoints
    self.actor_socket = self.path / 'actors.sock'  # if no address is given
    self.tensorboard = self.path / 'tensorboard'  # event files
    self.profile = self.path / 'profile'  # traces of `--profile`
    self._hosts = self.path / 'hosts'
    # Folders on the way here that are inside another work directory.
    self._inside: tuple[pathlib.Path, ...] = ()

  def of_host(self, index: int) -> 'Workdir':
    """Returns the directory of host `index`, below that of host 0."""
    if not index:
      return self
    host = Workdir(self._hosts / str(index))
    host._inside = self._hosts, host.path
    return host

  def acquire(self, say: Callable[[str], None]) -> contextlib.ExitStack:
    """Makes the directory, and locks it until the result is closed.

    The end of the process frees it, too, even by SIGKILL. `flock` locks an
    opened file, so it also keeps out other threads of the process. On NFS,
    Linux asks the server for a lock, which other machines respect.

    `say` takes a sentence if the file system has no locks. Raises WorkdirError
    if the directory holds links, is not writable, or in use.
    """
    self.refuse_links()
    try:
      self.path.mkdir(parents=True, exist_ok=True)
      # Appends: until the lock is ours, the text is another run's.
      file = self.lock.open('ab+', buffering=0)
    except OSError as e:
      raise WorkdirError(
        f'--workdir={self.path} cannot be written to ({e.strerror}); choose a '
        'folder that you may write to.'
      ) from e
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      file.truncate(0)
    except BlockingIOError as e:
      with file:
        raise WorkdirError(
          f'--workdir={self.path} is in use by {_owner(file)}; stop that run, '
          'or choose another folder.'
        ) from e
    except OSError as e:
      say(
        f'--workdir={self.path} is not locked, as its file system cannot '
        f'({e.strerror}); make sure that no second run uses it.'
      )
    # The disk may be full.
    with contextlib.suppress(OSError):
      file.write(f'{os.getpid()} {socket.gethostname()}\n'.encode())
    # A forked child's copy would keep the lock.
    os.register_at_fork(after_in_child=file.close)
    lock = contextlib.ExitStack()
    lock.callback(_free, file)
    return lock

  def refuse_links(self) -> None:
    """Raises WorkdirError for a link, as a run writes and deletes files here.

    The directory itself may be a link, unless it is a host's.
    """
    refuse_links(*self._inside)
    for path, folders, files in os.walk(self.path):
      refuse_links(*(pathlib.Path(path, name) for name in (*folders, *files)))
      # Weights & Biases makes links, and a Reverb server, which a killed run
      # leaves.
      folders[:] = [x for x in folders if x not in ('wandb', '.restored')]

  def read_config(
    self, allowed: Mapping[str, settings.Allowed] | None = None
  ) -> ml_collections.ConfigDict:
    """Returns the configuration of the latest start; raises WorkdirError.

    `allowed` are the allowed values of more keys to check.
    """
    try:
      config = settings.make_config(file_io.read_json(self.config_json))
      for key, value in _DEFAULTS.items():
        section, _, name = key.partition('.')
        # An agent of the user's may have no such section.
        keys = config.get(section)
        if isinstance(keys, ml_collections.ConfigDict) and name not in keys:
          keys[name] = value
      settings.check_values(config, allowed or {})
      settings.check(config, _NEEDED, complete=False)
      return config
    except OSError as e:
      raise WorkdirError(
        f'--workdir={self.path} holds no run (no config.json); give the '
        'folder that a training run printed, or put the file back.'
      ) from e
    except (RecursionError, ValueError) as e:
      reason = str(e).rstrip('.')
      raise WorkdirError(
        f'{self.config_json} is damaged ({reason}); put a good one back.'
      ) from e

  def read_env_spec(self) -> types.EnvSpec:
    """Returns the spec of the latest start's environments; or WorkdirError."""
    try:
      return env_specs.from_json(file_io.read_json(self.env_spec_json))
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
    file_io.write_json(self.env_spec_json, env_specs.to_json(spec))

  def write_config(self, config: ml_collections.ConfigDict) -> None:
    """Writes configuration and versions of this start; raises NotWritten."""
    file_io.write_json(self.config_json, config.to_dict())
    line = json.dumps(_software()) + '\n'
    try:
      file_io.append_whole(self.versions, line.encode())
    except OSError as e:
      raise file_io.NotWritten(
        f'{self.versions} could not be written ({e.strerror}).'
      ) from e


def refuse_links(*paths: pathlib.Path) -> None:
  """Raises WorkdirError if a path to write to is a link."""
  for path in paths:
    if path.is_symlink():
      raise WorkdirError(
        f'{path} is a link, so writing could change files elsewhere; replace '
        'it by what it points to. A work directory itself may be a link.'
      )


def _free(file: io.FileIO) -> None:
  """Frees the lock, also if a child that forks right now has a copy."""
  with file, contextlib.suppress(OSError):
    fcntl.flock(file, fcntl.LOCK_UN)


def _owner(file: io.FileIO) -> str:
  file.seek(0)
  match = re.fullmatch(rb'(\d+) ([\w.-]+)\n', file.read(_MOST_BYTES))
  if match is None:
    return 'another process'
  return f'process {match[1].decode()} on {match[2].decode()}'


def _software() -> dict[str, str | None]:
  """Returns the time, the git commit and each package's version.

  A missing package's version is None, as is the commit outside a clone.
  """
  now = datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds')
  versions = {
    'time': now,
    'commit': _commit(_ROOT),
    'python': platform.python_version(),
  }
  for name in _PACKAGES:
    try:
      versions[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      versions[name] = None
  return versions


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
