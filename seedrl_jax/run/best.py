"""The checkpoint of a run with the best evaluation: `checkpoint.keep_best`."""

import math
from collections.abc import Callable
from typing import Any

from seedrl_jax import types
from seedrl_jax.run import checkpointing
from seedrl_jax.runtime import checkpoints, file_io, report
from seedrl_jax.runtime import workdir as workdir_lib


class _OneCheckpoint(checkpoints.Checkpoints):
  """Keeps the last one that was saved, whatever its number."""

  def save(self, step: int, state: types.Nest, record: dict[str, Any]) -> None:
    """See `Checkpoints.save`."""
    super().save(step, state, record)
    for other in self.steps():
      if other != step:
        file_io.remove(self._path / str(other))


class BestCheckpoint:
  """Saves the parameters that were evaluated best, without the replay.

  One thread reports evaluations, another saves.
  """

  def __init__(self, workdir: workdir_lib.Workdir, say: Callable[[str], None]):
    """Goes on from the best checkpoint that is there, if any."""
    self._storage = _OneCheckpoint(workdir.best, keep=2, report=say)
    self._writer = checkpointing.CheckpointWriter(self._storage, None, say)
    self._say = say
    self._count = 0
    self._best, self._is_due = -math.inf, False
    if record := self._storage.newest_record():
      returns = record['eval_returns']
      self._best = sum(returns) / max(len(returns), 1)

  def note(self, window: report.EpisodeWindow) -> None:
    """Takes the evaluation episodes; counts those of each window once."""
    size = report.EVAL_WINDOW
    if len(window.returns) < size or window.count - self._count < size:
      return
    self._count = window.count
    mean = window.mean_return()
    if mean is not None and mean > self._best:
      self._best, self._is_due = mean, True

  def save_if_due(
    self,
    state: checkpointing.StateSource,
    record: checkpointing.RecordSource,
  ) -> None:
    """Saves in a thread if the last evaluation was the best."""
    if self._is_due and not self._writer.is_writing:
      self._is_due = False
      self._writer.save_midway(state, record, wait=False)

  def finish(self, timeout: float) -> None:
    """Waits at most `timeout` seconds for a write; says which one is best."""
    self._writer.finish(timeout)
    if self._writer.is_writing:
      self._say(
        f'The best checkpoint was not written within {timeout:.0f} s; an older '
        'one may remain.'
      )
      return
    for step in self._storage.steps():
      self._say(
        f'Best checkpoint: {step}, with an evaluation of {self._best:.2f}.'
      )
