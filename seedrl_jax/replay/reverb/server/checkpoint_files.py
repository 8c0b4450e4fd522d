"""Checkpoints that a Reverb server writes: finds, keeps and prunes them.

`checkpoint_rewriting.py` says what is in one. dm-reverb 0.14.0 keeps only the
newest checkpoint and deletes *everything* else from its folder. So a server
gets a folder of its own, and `keep` moves what it wrote.
"""

import os
import pathlib
import shutil
import tempfile

_DONE = 'DONE'


def is_complete(path: str | os.PathLike[str]) -> bool:
  """Returns whether a server has finished writing the checkpoint `path`."""
  return pathlib.Path(path, _DONE).is_file()


def newest_first(folder: str | os.PathLike[str]) -> list[pathlib.Path]:
  """Returns the complete checkpoints in `folder`, which need not exist."""
  found = [done.parent for done in pathlib.Path(folder).glob(f'*/{_DONE}')]
  # Names of Reverb's own are local times, which do not sort.
  return sorted(
    found, key=lambda path: (path / _DONE).stat().st_mtime_ns, reverse=True
  )


def num_bytes(path: str | os.PathLike[str]) -> int:
  """Returns what a checkpoint takes on disk; 0 if it is missing."""
  return sum(file.stat().st_size for file in pathlib.Path(path).glob('*'))


def keep(written: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
  """Moves a checkpoint that a server wrote to `path`, which appears complete.

  One that is at `path` already is replaced.

  Raises:
    OSError: if that cannot be.
  """
  target = pathlib.Path(path)
  target.parent.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory(
    prefix=f'.{target.name}.', dir=target.parent
  ) as scratch:
    # A rename, or a copy if it is another file system.
    arrived = shutil.move(written, pathlib.Path(scratch, 'new'))
    if target.exists():
      os.rename(target, pathlib.Path(scratch, 'old'))
    os.rename(arrived, target)


def prune(folder: str | os.PathLike[str], keep_newest: int) -> None:
  """Deletes all complete checkpoints in `folder` but the newest ones."""
  for path in newest_first(folder)[keep_newest:]:
    # First, so that half of a checkpoint is never taken for a whole one.
    (path / _DONE).unlink()
    shutil.rmtree(path)


class ServerFolder:
  """The folder of a server: its log and its checkpoints."""

  def __init__(self, path: str | None, keep_checkpoints: int | None):
    """Takes `checkpoint_dir` and `keep_checkpoints` of `ReverbServer`."""
    self._scratch: tempfile.TemporaryDirectory | None = None
    if path is None:
      self._scratch = tempfile.TemporaryDirectory(prefix='seedrl-reverb-')
      path = self._scratch.name
    self._path = pathlib.Path(path).absolute()
    self._keep = keep_checkpoints
    self.log = self._path / 'server.log'
    # The server writes here, and deletes all that is here but the newest.
    self.own = self._path / '.server'
    # What is loaded instead of a checkpoint that is restored.
    self.rewritten = self._path / '.restored'

  def checkpoints(self) -> list[pathlib.Path]:
    """Returns the checkpoints that are not the server's, newest first."""
    return newest_first(self._path)

  def collect(self) -> None:
    """Moves here what a server that has ended wrote."""
    for path in newest_first(self.own):
      keep(path, self._path / path.name)

  def prepare(self) -> None:
    """Makes room for a server that is about to start."""
    self.collect()
    if self._keep is not None:
      prune(self._path, self._keep)
    self.remove_rewritten()
    shutil.rmtree(self.own, ignore_errors=True)
    self.own.mkdir(parents=True)

  def remove_rewritten(self) -> None:
    """Removes what was made for a start."""
    shutil.rmtree(self.rewritten, ignore_errors=True)

  def close(self) -> None:
    """Removes what is not to last."""
    self.remove_rewritten()
    if self._scratch is not None:
      self._scratch.cleanup()
