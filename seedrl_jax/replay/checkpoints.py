"""The replay's part of a run's checkpoints, beside the learner's."""

import pathlib
import re
import shutil
from collections.abc import Callable, Collection

from seedrl_jax.replay import base

# Names that stores give to unfinished checkpoints.
_UNFINISHED = re.compile(r'\.\d+\..+|\d+\..+\.partial|\d+\.tmp')


class ReplayCheckpoints:
  """Saves a store beside the learner's checkpoints, one folder for each."""

  def __init__(
    self,
    store: base.TrajectoryStore,
    folder: pathlib.Path,
    report: Callable[[str], None],
  ):
    """Removes the remains of interrupted saves; `report` receives failures."""
    self._store = store
    self._folder = folder
    self._report = report
    self._delete(lambda name: _UNFINISHED.fullmatch(name) is not None)

  def save(
    self, step: int, on_snapshot: Callable[[], None] | None = None
  ) -> str:
    """Saves the store; returns its name for `restore`, or '' if that fails.

    Failures are reported, not raised.
    """
    path = self._folder / str(step)
    try:
      self._folder.mkdir(parents=True, exist_ok=True)
      self._store.checkpoint(str(path), on_snapshot)
    except (OSError, RuntimeError) as e:
      reason = getattr(e, 'strerror', None) or e
      self._report(f'Checkpoint {step} has no replay: {reason}')
      return ''
    return path.name

  def restore(self, name: str) -> None:
    """Restores the checkpoint `name`; may raise CheckpointError."""
    self._store.restore(str(self._folder / name))

  def prune(self, steps: Collection[int]) -> None:
    """Deletes all checkpoints but those of `steps`."""
    self._delete(lambda name: name.isdigit() and int(name) not in steps)

  def _delete(self, is_meant: Callable[[str], bool]) -> None:
    if not self._folder.is_dir():
      return
    for path in self._folder.iterdir():
      if not is_meant(path.name):
        continue
      # Do not follow links.
      if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
      else:
        path.unlink()
