"""The writer 'jsonl': metrics.jsonl, a JSON object for each report."""

import json
import math
import pathlib

import ml_collections

from seedrl_jax.runtime import file_io, report
from seedrl_jax.runtime import workdir as workdir_lib
from seedrl_jax.runtime.writers import base


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
