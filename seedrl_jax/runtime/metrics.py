"""Where a run's numbers go: metrics.csv, TensorBoard events, summary.json."""

import csv
import io
import math
import os
import pathlib
import time
from collections.abc import Mapping

from tensorboardX import event_file_writer, summary
from tensorboardX.proto import event_pb2

from seedrl_jax.runtime import workdir as workdir_lib

Metrics = Mapping[str, float | None]


class CsvLog:
  """Appends rows to a CSV file whose columns may grow.

  A new column rewrites the file once with the wider header; a resumed run
  continues the same file. Every row is on disk when `write` returns.
  """

  def __init__(self, path: pathlib.Path):
    """Opens the log; a half-written last line is cut off."""
    self._path = path
    self._columns: list[str] = []
    if path.exists():
      self._rewrite(self._read())

  def write(self, row: Metrics) -> None:
    """Appends a row; None leaves a cell empty."""
    if not set(row) <= set(self._columns):
      rows = self._read() if self._path.exists() else []
      self._columns += [name for name in row if name not in self._columns]
      self._rewrite(rows)
    cells = {k: '' if v is None else v for k, v in row.items()}
    with self._path.open('a', newline='') as f:
      csv.DictWriter(f, self._columns, lineterminator='\n').writerow(cells)

  def roll_back(self, updates: int, env_steps: float = math.inf) -> int:
    """Drops rows of what a resumed run will do again.

    Environments go on while a checkpoint is written, so a row may be of its
    update and still be ahead of it in steps.

    Args:
      updates: of the checkpoint that the run resumes from.
      env_steps: of that checkpoint.

    Returns:
      How many rows were dropped.
    """
    rows = self._read() if self._path.exists() else []
    kept = [
      row
      for row in rows
      if float(row.get('updates') or 0) <= updates
      and float(row.get('env_steps') or 0) <= env_steps
    ]
    if len(kept) < len(rows):
      self._rewrite(kept)
    return len(rows) - len(kept)

  def _read(self) -> list[dict[str, str]]:
    """Returns the rows and takes over their columns."""
    text = self._path.read_text()
    complete = text[: text.rfind('\n') + 1]
    reader = csv.DictReader(io.StringIO(complete))
    self._columns = list(reader.fieldnames or [])
    return [{k: v or '' for k, v in row.items() if k} for row in reader]

  def _rewrite(self, rows: list[dict[str, str]]) -> None:
    temporary = self._path.with_name(self._path.name + '.tmp')
    with temporary.open('w', newline='') as f:
      writer = csv.DictWriter(f, self._columns, lineterminator='\n')
      writer.writeheader()
      writer.writerows(rows)
    os.replace(temporary, self._path)


class MetricsLog:
  """Writes every report to all of a run's logs."""

  def __init__(self, workdir: workdir_lib.Workdir, tensorboard: bool):
    """Opens the logs of a work directory."""
    self._csv = CsvLog(workdir.metrics_csv)
    self._events = _event_writer(workdir.tensorboard) if tensorboard else None

  def roll_back(self, updates: int, env_steps: float = math.inf) -> int:
    """See `CsvLog.roll_back`."""
    return self._csv.roll_back(updates, env_steps)

  def write(self, row: Metrics) -> None:
    """Writes one report; `row` has `env_frames`, TensorBoard's step."""
    self._csv.write(row)
    if self._events is None:
      return
    event = event_pb2.Event(
      wall_time=time.time(), step=int(row['env_frames'] or 0)
    )
    for name, value in row.items():
      if value is not None and name != 'env_frames':
        event.summary.MergeFrom(summary.scalar(name, value))
    self._events.write_event(event)
    self._events.flush()

  def close(self) -> None:
    """Closes the logs; nothing of them is open, or runs, when it returns."""
    if self._events is not None:
      self._events.close()


def _event_writer(path: pathlib.Path) -> event_file_writer.EventsWriter:
  path.mkdir(parents=True, exist_ok=True)
  # Files are named by the second: two starts in one would share a name, and
  # the second would overwrite what the first wrote.
  number = len(list(path.glob('*')))
  # Not `SummaryWriter`: its two threads are no quicker with a row every few
  # seconds, and closing it leaves one of them, and its pipe, to end later.
  return event_file_writer.EventsWriter(str(path / 'events'), f'.{number}')
