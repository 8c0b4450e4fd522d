"""The work directory of a run: its files, their lock, and how to write them."""

import contextlib
import json
import os
import pathlib
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ml_collections

from seedrl_jax import types
from seedrl_jax.runtime import env_specs, file_io, run_lock, settings, versions

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
  'network.normalize_pixels': False,
  'optimizer.decay_frames': None,
  'optimizer.warmup_frames': 0,
}
_Say = Callable[[str], None]


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
    # What was not there before `acquire`, innermost first.
    self._new: list[pathlib.Path] = []

  def of_host(self, index: int) -> 'Workdir':
    """Returns the directory of host `index`, below that of host 0."""
    if not index:
      return self
    host = Workdir(self._hosts / str(index))
    host._inside = self._hosts, host.path
    return host

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

  def acquire(self, say: _Say) -> run_lock.RunLock:
    """Makes the directory and locks it; `say` as `RunLock`.

    Raises WorkdirError if it holds links, is not writable, or in use.
    """
    self.refuse_links()
    files = self.config_json, self.env_spec_json, self.versions
    new_paths = *files, self.reverb, self.lock, self.path, *self.path.parents
    self._new = [path for path in new_paths if not path.exists()]
    try:
      self.create()
      return run_lock.RunLock(self.lock, say)
    except run_lock.Held as e:
      raise WorkdirError(
        f'--workdir={self.path} is in use by {e}; stop that run, or choose '
        'another folder.'
      ) from e
    except (WorkdirError, OSError) as e:
      self.withdraw(None, e, None)
      if isinstance(e, WorkdirError):
        raise
      raise WorkdirError(f'{self.lock} cannot be opened ({e.strerror}).') from e

  def withdraw(
    self, kind: object, error: BaseException | None, trace: object
  ) -> None:
    """Leaves a new directory as it was, after a start that failed its checks.

    For `ExitStack.push`, while the lock is held. A log of Reverb stays if the
    error names it.
    """
    del kind, trace
    with contextlib.suppress(OSError):
      for path in self._new:
        if path in (self.path, *self.path.parents):
          # Fails if it is not empty.
          path.rmdir()
        elif f'{path}{os.sep}' not in str(error):
          file_io.remove(path)

  def refuse_links(self) -> None:
    """Raises WorkdirError for a link, as a run writes and deletes files here.

    The directory itself may be a link, unless it is a host's.
    """
    refuse_links(*self._inside, *self.path.glob('*'))
    folders = [
      self.checkpoints,
      self.best,
      self.replay,
      self.reverb,
      self.tensorboard,
    ]
    for folder in [*folders, self.profile, self._hosts]:
      refuse_links(*_below(folder))

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

  def read_versions(self) -> dict[str, Any]:
    """Returns the software of the latest start, if any; raises WorkdirError."""
    try:
      lines = self.versions.read_bytes().splitlines()
      return file_io.json_object(lines[-1]) if lines else {}
    except FileNotFoundError:
      return {}
    except (OSError, ValueError) as e:
      raise WorkdirError(f'{self.versions} is damaged ({e}).') from e

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
    line = json.dumps(versions.current()) + '\n'
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


def _below(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields what is in a folder and below it, even if files come and go."""
  for path, folders, files in os.walk(folder):
    # A Reverb server makes links there, which a killed run leaves.
    if os.path.basename(path) != '.restored':
      yield from (pathlib.Path(path, name) for name in (*folders, *files))
