"""The replay's part of a run's checkpoints.

Used by `system`: the learner's checkpoint of an update has the replay's beside
it, and both come back to the same moment.
"""

import pathlib
import shutil
from collections.abc import Callable, Collection

from seedrl_jax.replay import base


class ReplayCheckpoints:
  """Saves a store beside the learner's checkpoints, one folder for each."""

  def __init__(
    self,
    store: base.TrajectoryStore,
    folder: pathlib.Path,
    report: Callable[[str], None],
  ):
    """Changes nothing yet.

    Args:
      store: what to save.
      folder: for the checkpoints; made when the first is written.
      report: takes sentences about what could not be done.
    """
    self._store = store
    self._folder = folder
    self._report = report

  def save(self, step: int) -> str:
    """Saves the store beside the learner's checkpoint `step`.

    A replay that cannot be saved costs a sentence and not the run: the
    learner's checkpoint is worth having without it.

    Returns:
      What `restore` wants; '' where nothing was saved.
    """
    path = self._folder / str(step)
    try:
      self._folder.mkdir(parents=True, exist_ok=True)
      self._store.checkpoint(str(path))
    except (OSError, RuntimeError) as e:
      self._report(f'Checkpoint {step} has no replay: {e}')
      return ''
    return path.name

  def restore(self, name: str) -> None:
    """Brings back what `save` returned `name` for.

    Raises:
      CheckpointError: where it is missing, damaged or does not fit.
    """
    self._store.restore(str(self._folder / name))

  def prune(self, steps: Collection[int]) -> None:
    """Deletes those whose learner's checkpoint is gone."""
    if not self._folder.is_dir():
      return
    for path in self._folder.iterdir():
      if path.name.isdigit() and int(path.name) not in steps:
        if path.is_dir():
          shutil.rmtree(path)
        else:
          path.unlink()
