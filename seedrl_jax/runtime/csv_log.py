"""Reads and writes metrics.csv."""

import csv
import math
import os
import pathlib
from collections.abc import Mapping

from seedrl_jax.runtime import workdir

Metrics = Mapping[str, float | None]
_Rows = list[list[str]]

UPDATES, FRAMES = 'time/updates', 'time/env_frames'


class CsvLog:
  """Appends rows to a CSV file whose columns may grow.

  A new column rewrites the file once with the wider header; a resumed run
  continues the same file. Every row is on disk when `write` returns.
  """

  def __init__(self, path: pathlib.Path):
    """Opens the log; a half-written last line is cut off.

    Raises:
      ValueError: if what is there is not a log of this class.
      OSError: if it cannot be read.
    """
    self._path = path
    self._columns: list[str] = []
    if os.path.lexists(path):
      self._columns = _checked(path)
      # Not by writing: that must work on a full disk.
      os.truncate(path, path.read_bytes().rfind(b'\n') + 1)

  def write(self, row: Metrics) -> None:
    """Appends a row; None leaves a cell empty.

    Raises:
      OSError: if it cannot; the log is then as it was.
    """
    new = [name for name in row if name not in self._columns]
    if new:
      self._rewrite([*self._columns, *new], self._rows())
    values = (row.get(name) for name in self._columns)
    line = ','.join('' if value is None else str(value) for value in values)
    workdir.append_whole(self._path, f'{line}\n'.encode())

  def roll_back(self, updates: int, env_frames: float = math.inf) -> int:
    """Drops rows of what a resumed run will do again.

    Environments go on while a checkpoint is written, so a row may be of its
    update and still be ahead of it in frames.

    Args:
      updates: of the checkpoint that the run resumes from.
      env_frames: of that checkpoint.

    Returns:
      How many rows were dropped.
    """
    rows = self._rows()
    kept = [
      row
      for row in rows
      if self._number(row, UPDATES) <= updates
      and self._number(row, FRAMES) <= env_frames
    ]
    if len(kept) < len(rows):
      self._rewrite(self._columns, kept)
    return len(rows) - len(kept)

  def _number(self, row: list[str], name: str) -> float:
    return float(row[self._columns.index(name)] or 0)

  def _rows(self) -> _Rows:
    return read(self._path)[1] if self._columns else []

  def _rewrite(self, columns: list[str], rows: _Rows) -> None:
    temporary = self._path.with_name(self._path.name + '.tmp')
    temporary.unlink(missing_ok=True)
    with temporary.open('x', newline='') as f:
      writer = csv.writer(f, lineterminator='\n')
      writer.writerow(columns)
      writer.writerows([*r, *[''] * (len(columns) - len(r))] for r in rows)
    os.replace(temporary, self._path)
    self._columns = columns


def read(path: pathlib.Path) -> tuple[list[str], _Rows]:
  """Returns the header and the rows of a CSV file.

  Without its newline the last line may have lost digits of its last cell: it
  is left out.

  Raises:
    ValueError: if it is no text, or not CSV.
  """
  text = path.read_text()
  try:
    lines = csv.reader(text[: text.rfind('\n') + 1].splitlines(), strict=True)
    header, *rows = [*lines] or [[]]
  except csv.Error as e:
    raise ValueError(str(e)) from e
  return header, rows


def _checked(path: pathlib.Path) -> list[str]:
  """Returns the columns of a log.

  Raises:
    ValueError: if it is none.
  """
  if path.is_symlink() or not path.is_file():
    raise ValueError('it is no file')
  header, rows = read(path)
  if missing := [name for name in (UPDATES, FRAMES) if name not in header]:
    raise ValueError(f'it has no column {" or ".join(missing)}')
  for row in rows:
    if len(row) != len(header):
      raise ValueError('a row has not as many cells as the header')
    for cell in filter(None, row):
      float(cell)
  return header
