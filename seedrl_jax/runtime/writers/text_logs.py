"""The writers 'csv' and 'jsonl': files of a line for each report."""

import json
import math
import pathlib

import ml_collections

from seedrl_jax.runtime import file_io, process, report
from seedrl_jax.runtime import workdir as workdir_lib
from seedrl_jax.runtime.writers import base


class CsvLog(base.Writer):
  """Appends rows to a CSV file, which is rewritten for a new column."""

  def __init__(self, workdir: pathlib.Path, config: ml_collections.ConfigDict):
    """Continues a file; puts aside, with a word, one that it cannot."""
    del config
    self._path = path = workdir_lib.Workdir(workdir).metrics_csv
    self._columns: list[str] = []
    if not path.exists():
      return
    try:
      self._columns, _ = read_csv(path)
    except ValueError as e:
      aside = file_io.put_aside(path)
      process.say(f'{path} cannot be continued ({e}); it is now {aside.name}.')
    else:
      file_io.cut_last_line(path)

  def write(self, row: base.Row) -> None:
    new = [name for name in row if name not in self._columns]
    if new:
      rows = read_csv(self._path)[1] if self._columns else []
      self._rewrite([*self._columns, *new], [r + [''] * len(new) for r in rows])
    values = (row.get(name) for name in self._columns)
    line = ','.join('' if value is None else str(value) for value in values)
    file_io.append_whole(self._path, f'{line}\n'.encode())

  def roll_back(self, updates: int, frames: int) -> None:
    if not self._columns:
      return
    _, rows = read_csv(self._path)
    update = self._columns.index(report.UPDATES)
    frame = self._columns.index(report.FRAMES)
    earlier = [
      r
      for r in rows
      if number(r[update]) <= updates and number(r[frame]) <= frames
    ]
    if len(earlier) < len(rows):
      self._rewrite(self._columns, earlier)

  def _rewrite(self, columns: list[str], rows: list[list[str]]) -> None:
    text = ''.join(','.join(cells) + '\n' for cells in (columns, *rows))
    file_io.write_whole(self._path, text.encode())
    self._columns = columns


def read_csv(path: pathlib.Path) -> tuple[list[str], list[list[str]]]:
  """Returns header and whole rows of metrics.csv; ValueError without header."""
  lines = path.read_text().split('\n')[:-1]
  header, *rows = [line.split(',') for line in lines] or [[]]
  needed = report.UPDATES, report.FRAMES
  if missing := [name for name in needed if name not in header]:
    raise ValueError(f'it has no column {" or ".join(missing)}')
  return header, [row for row in rows if len(row) == len(header)]


def number(cell: str) -> float:
  """Returns a cell's number; nan, which fails every comparison, for others."""
  try:
    return float(cell)
  except ValueError:
    return math.nan


class JsonLog(base.Writer):
  """Appends reports to a file, null for what is not known or not finite."""

  def __init__(self, workdir: pathlib.Path, config: ml_collections.ConfigDict):
    """Continues a run's metrics.jsonl."""
    del config
    self._path = workdir_lib.Workdir(workdir).metrics_jsonl
    if self._path.exists():
      file_io.cut_last_line(self._path)

  def write(self, row: base.Row) -> None:
    # JSON has no NaN.
    finite = {
      name: value if value is not None and math.isfinite(value) else None
      for name, value in row.items()
    }
    # An array's element is no number to JSON.
    line = json.dumps(finite, default=float) + '\n'
    file_io.append_whole(self._path, line.encode())

  def roll_back(self, updates: int, frames: int) -> None:
    if not self._path.exists():
      return
    lines = self._path.read_bytes().splitlines(keepends=True)
    earlier = [line for line in lines if _is_within(line, updates, frames)]
    if len(earlier) < len(lines):
      file_io.write_whole(self._path, *earlier)


def _is_within(line: bytes, updates: int, frames: int) -> bool:
  """Returns whether a line is a report, and of no later moment."""
  try:
    row = json.loads(line)
    return row[report.UPDATES] <= updates and row[report.FRAMES] <= frames
  except (KeyError, TypeError, ValueError):
    return False
