"""Where a run's numbers go: metrics.csv, TensorBoard events, summary.json."""

import csv
import io
import os
import pathlib
from collections.abc import Mapping

import tensorboardX

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
      rows = self._read()
      self._columns = list(rows[0]) if rows else []
      self._rewrite(rows)

  def write(self, row: Metrics) -> None:
    """Appends a row; None leaves a cell empty."""
    if not set(row) <= set(self._columns):
      rows = self._read() if self._path.exists() else []
      self._columns += [name for name in row if name not in self._columns]
      self._rewrite(rows)
    cells = {k: '' if v is None else v for k, v in row.items()}
    with self._path.open('a', newline='') as f:
      csv.DictWriter(f, self._columns).writerow(cells)

  def roll_back(self, updates: int) -> int:
    """Drops rows of updates that a resumed run will make again.

    Args:
      updates: of the checkpoint that the run resumes from.

    Returns:
      How many rows were dropped.
    """
    rows = self._read() if self._path.exists() else []
    kept = [r for r in rows if float(r.get('updates') or 0) <= updates]
    if len(kept) < len(rows):
      self._rewrite(kept)
    return len(rows) - len(kept)

  def _read(self) -> list[dict[str, str]]:
    text = self._path.read_text()
    complete = text[: text.rfind('\n') + 1]
    reader = csv.DictReader(io.StringIO(complete))
    rows = [{k: v or '' for k, v in row.items() if k} for row in reader]
    if not rows and reader.fieldnames:
      self._columns = list(reader.fieldnames)
    return rows

  def _rewrite(self, rows: list[dict[str, str]]) -> None:
    temporary = self._path.with_name(self._path.name + '.tmp')
    with temporary.open('w', newline='') as f:
      writer = csv.DictWriter(f, self._columns)
      writer.writeheader()
      writer.writerows(rows)
    os.replace(temporary, self._path)


class MetricsLog:
  """Writes every report to all of a run's logs."""

  def __init__(self, workdir: workdir_lib.Workdir, tensorboard: bool):
    """Opens the logs of a work directory."""
    self._csv = CsvLog(workdir.metrics_csv)
    self._events = (
      tensorboardX.SummaryWriter(str(workdir.tensorboard))
      if tensorboard
      else None
    )

  def roll_back(self, updates: int) -> int:
    """See `CsvLog.roll_back`."""
    return self._csv.roll_back(updates)

  def write(self, row: Metrics) -> None:
    """Writes one report; `row` has `env_frames`, TensorBoard's step."""
    self._csv.write(row)
    if self._events is None:
      return
    step = int(row['env_frames'] or 0)
    for name, value in row.items():
      if value is not None and name != 'env_frames':
        self._events.add_scalar(name, value, step)

  def close(self) -> None:
    """Flushes and closes the logs."""
    if self._events is not None:
      self._events.close()
