"""Where a run's metrics go: metrics.csv and TensorBoard events.

None of it may end a run: what cannot be continued is put aside, what cannot be
written is left out.
"""

import contextlib
import os
import pathlib
from collections.abc import Callable, Iterator

from seedrl_jax.runtime import csv_log, events
from seedrl_jax.runtime import workdir as workdir_lib

Metrics = csv_log.Metrics
_Say = Callable[[str], None]


class MetricsLog:
  """Writes every report to all of a run's logs."""

  def __init__(
    self, workdir: workdir_lib.Workdir, tensorboard: bool, say: _Say
  ):
    """Opens the logs of a work directory.

    Args:
      workdir: of the run.
      tensorboard: whether to write events, too.
      say: takes a sentence about what cannot be used or written.
    """
    self._say = say
    self._is_failing = False
    self._csv = _open_csv(workdir.metrics_csv, say)
    folder = workdir.tensorboard
    if tensorboard and os.path.lexists(folder) and not folder.is_dir():
      _put_aside(folder, 'it is no folder', say)
    self._events = events.EventLog(folder) if tensorboard else None

  def roll_back(self, updates: int, env_frames: int) -> None:
    """Drops what is later than a checkpoint; see `CsvLog.roll_back`."""
    with self._spared():
      if self._events is not None:
        self._events.roll_back(env_frames)
      self._csv.roll_back(updates, env_frames)

  def write(self, row: Metrics) -> None:
    """Writes one report; `row` has `time/env_frames`, TensorBoard's step."""
    with self._spared():
      self._csv.write(row)
      if self._events is not None:
        self._events.write(row, int(row[csv_log.FRAMES] or 0))
      self._is_failing = False

  @contextlib.contextmanager
  def _spared(self) -> Iterator[None]:
    """Says that a log cannot be written, once until it can be again."""
    try:
      yield
    except OSError as e:
      if not self._is_failing:
        self._say(
          f'The curves cannot be written ({e.strerror}); the run goes on '
          'without them until they can.'
        )
      self._is_failing = True


def _open_csv(path: pathlib.Path, say: _Say) -> csv_log.CsvLog:
  try:
    return csv_log.CsvLog(path)
  except (OSError, ValueError) as e:
    _put_aside(path, str(e), say)
    return csv_log.CsvLog(path)


def _put_aside(path: pathlib.Path, reason: str, say: _Say) -> None:
  aside = workdir_lib.put_aside(path)
  say(f'{path} cannot be continued ({reason}); it is now {aside.name}.')
