"""What a run shows: progress line, summary, metrics.csv and TensorBoard."""

import contextlib
import math
import os
import pathlib
import shutil
import socket
import struct
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TextIO

from google.protobuf import message
from tensorboardX import record_writer
from tensorboardX.proto import event_pb2

from seedrl_jax.runtime import process, report
from seedrl_jax.runtime import workdir as workdir_lib

Metrics = Mapping[str, float | None]

UPDATES, FRAMES = 'time/updates', 'time/env_frames'
STOLEN = 'time/stolen_share'
# A share of stolen time that is worth a word.
_MUCH_STOLEN = 0.1
_EVENTS_PREFIX = 'events.out.tfevents.'


class ProgressLine:
  """A line that changes on a terminal, and plain lines elsewhere.

  It prints nothing more once the output is closed (`train.py | head`).
  """

  def __init__(self, out: TextIO | None = None):
    self._out = out or sys.stdout
    self._live = self._out.isatty() and os.environ.get('TERM') != 'dumb'
    self._rows = 0

  def update(self, text: str) -> None:
    """Shows `text` in place of what was shown before."""
    if self._live:
      # Rows that the terminal wraps could not be cleared.
      rows = textwrap.wrap(text, max(1, shutil.get_terminal_size().columns - 1))
      process.write(self._out, self._cleared() + '\n'.join(rows))
      self._rows = len(rows)
    else:
      process.write(self._out, text + '\n')

  def say(self, text: str) -> None:
    """Prints a line that stays."""
    process.write(self._out, self._cleared() + text + '\n')

  def _cleared(self) -> str:
    """Returns the codes that clear the text of `update`."""
    rows, self._rows = self._rows, 0
    return (f'\x1b[{rows - 1}A' if rows > 1 else '') + '\r\x1b[J' * bool(rows)


def format_count(value: float) -> str:
  """Returns a short count, such as 950, 12.3k or 4.56M."""
  # Rounded before the unit is chosen: 999,999 is 1M.
  rounded = float(f'{value:.3g}')
  for limit, scale, unit in ((1e9, 1e9, 'G'), (1e6, 1e6, 'M'), (1e4, 1e3, 'k')):
    if abs(rounded) >= limit:
      return f'{rounded / scale:g}{unit}'
  return f'{value:.0f}'


def progress_text(row: Metrics, total_frames: int, waits_for: str) -> str:
  """Returns a row of `Reporter.row` as the progress line."""
  frames = row[FRAMES] or 0

  def number(name: str, digits: int) -> str:
    value = row[name]
    return '-' if value is None else f'{value:.{digits}f}'

  text = (
    f'{format_count(frames)}/{format_count(total_frames)} '
    f'frames ({frames / total_frames:.0%}) | '
    f'{format_count(row["time/frames_per_s"] or 0)} frames/s | '
    f'return {number("rollout/return", 1)} '
    f'(eval {number("eval/return", 1)}) | '
    f'{format_count(row[UPDATES] or 0)} updates | '
    f'lag {number("replay/policy_lag_mean_batches", 1)} | '
    f'waits for {waits_for}'
  )
  if (stolen := row[STOLEN] or 0) > _MUCH_STOLEN:
    text += f' | {stolen:.0%} stolen by other guests'
  return text


def summary_text(
  summary: report.Summary, waits: report.Waits, workdir: pathlib.Path
) -> str:
  """Returns the lines that a run ends with; `waits` are of this start."""

  def mean(value: float | None) -> str:
    return '-' if value is None else f'{value:.2f}'

  status = summary.status.partition(':')[0].capitalize()
  return (
    f'{status} after {summary.env_frames} frames in '
    f'{summary.seconds:.1f} s '
    f'({format_count(summary.frames_per_second)} frames/s), '
    f'{summary.updates} updates.\n'
    f'Mean return of the last {report.WINDOW} episodes: '
    f'{mean(summary.mean_return_100)}; evaluation (last {report.EVAL_WINDOW}): '
    f'{mean(summary.eval_mean_return)}.\n'
    f'{waits.report()[0].upper()}{waits.report()[1:]}.\n'
    f'Curves: {workdir}/metrics.csv; draw them with\n'
    f'  seedrl plot --workdir={workdir}'
  )


class MetricsLog:
  """Writes reports to a run's curves, without those that cannot be written."""

  def __init__(
    self,
    workdir: workdir_lib.Workdir,
    tensorboard: bool,
    say: Callable[[str], None],
  ):
    """Opens the curves; puts aside and reports what cannot be continued."""
    self._say = say
    self._is_failing = False
    self._csv = _CsvLog(workdir.metrics_csv, say)
    self._events = _EventLog(workdir.tensorboard) if tensorboard else None

  def roll_back(self, updates: int, env_frames: int) -> None:
    """Drops rows later than a checkpoint.

    Environments go on while a checkpoint is written, so a row of the same
    update may be ahead of it in frames.
    """
    with self._suppress_errors():
      self._csv.roll_back(updates, env_frames)
    with self._suppress_errors():
      if self._events is not None:
        self._events.roll_back(env_frames)

  def write(self, row: Metrics) -> None:
    """Writes one report; its `time/env_frames` is TensorBoard's step."""
    with self._suppress_errors():
      self._csv.write(row)
      if self._events is not None:
        self._events.write(row)
      self._is_failing = False

  @contextlib.contextmanager
  def _suppress_errors(self) -> Iterator[None]:
    """Reports a log that cannot be written, once until it can be again."""
    try:
      yield
    except (OSError, workdir_lib.NotWritten) as e:
      if not self._is_failing:
        reason = getattr(e.__cause__ or e, 'strerror', e)
        self._say(
          f'The curves cannot be written ({reason}); the run goes on without '
          'them until they can.'
        )
      self._is_failing = True


def read_csv(path: pathlib.Path) -> tuple[list[str], list[list[str]]]:
  """Returns the header and rows of metrics.csv, without an unfinished line.

  Raises:
    ValueError: if it is no text, or has no such header.
  """
  lines = path.read_text().split('\n')[:-1]
  header, *rows = [line.split(',') for line in lines] or [[]]
  if missing := [name for name in (UPDATES, FRAMES) if name not in header]:
    raise ValueError(f'it has no column {" or ".join(missing)}')
  return header, [row for row in rows if len(row) == len(header)]


class _CsvLog:
  """Appends rows to a CSV file, which is rewritten for a new column."""

  def __init__(self, path: pathlib.Path, say: Callable[[str], None]):
    """Continues a file, without a half-written last line."""
    self._path = path
    self._columns: list[str] = []
    if not path.exists():
      return
    try:
      self._columns, _ = read_csv(path)
    except ValueError as e:
      aside = workdir_lib.put_aside(path)
      say(f'{path} cannot be continued ({e}); it is now {aside.name}.')
    else:
      # Works on a full disk.
      os.truncate(path, path.read_bytes().rfind(b'\n') + 1)

  def write(self, row: Metrics) -> None:
    new = [name for name in row if name not in self._columns]
    if new:
      rows = read_csv(self._path)[1] if self._columns else []
      self._rewrite([*self._columns, *new], [r + [''] * len(new) for r in rows])
    values = (row.get(name) for name in self._columns)
    line = ','.join('' if value is None else str(value) for value in values)
    workdir_lib.append_whole(self._path, f'{line}\n'.encode())

  def roll_back(self, updates: int, env_frames: int) -> None:
    if not self._columns:
      return
    _, rows = read_csv(self._path)
    limits = [
      (self._columns.index(UPDATES), updates),
      (self._columns.index(FRAMES), env_frames),
    ]
    kept = [r for r in rows if all(number(r[i]) <= x for i, x in limits)]
    if len(kept) < len(rows):
      self._rewrite(self._columns, kept)

  def _rewrite(self, columns: list[str], rows: list[list[str]]) -> None:
    text = ''.join(','.join(cells) + '\n' for cells in (columns, *rows))
    workdir_lib.write_whole(self._path, text.encode())
    self._columns = columns


def number(cell: str) -> float:
  """Returns a cell's number; nan, which fails every comparison, for others."""
  try:
    return float(cell)
  except ValueError:
    return math.nan


class _EventLog:
  """Appends scalars to a new TensorBoard file: a TFRecord for each `Event`."""

  def __init__(self, folder: pathlib.Path):
    self._folder = folder
    self._path: pathlib.Path | None = None

  def write(self, row: Metrics) -> None:
    if self._path is None:
      self._path = self._begin()
    event = event_pb2.Event(wall_time=time.time(), step=int(row[FRAMES] or 0))
    for name, value in row.items():
      if value is not None:
        event.summary.value.add(tag=name, simple_value=value)
    workdir_lib.append_whole(self._path, _record(event))

  def roll_back(self, step: int) -> None:
    """Drops what earlier starts wrote after `step`."""
    # A `SessionLog` does not make TensorBoard 2.21 hide the old points.
    for path in self._folder.glob(f'{_EVENTS_PREFIX}*'):
      # A link's target is not this run's.
      if path.is_file() and not path.is_symlink():
        _cut(path, step)

  def _begin(self) -> pathlib.Path:
    self._folder.mkdir(parents=True, exist_ok=True)
    # Two starts may fall into the same second.
    number = len(list(self._folder.iterdir()))
    name = f'{_EVENTS_PREFIX}{int(time.time())}.{socket.gethostname()}.{number}'
    first = event_pb2.Event(wall_time=time.time(), file_version='brain.Event:2')
    workdir_lib.append_whole(self._folder / name, _record(first))
    return self._folder / name


def _record(event: event_pb2.Event) -> bytes:
  """Returns an event as a TFRecord."""
  data = event.SerializeToString()
  length = struct.pack('<Q', len(data))
  return b''.join((length, _checksum(length), data, _checksum(data)))


def _checksum(data: bytes) -> bytes:
  return struct.pack('<I', record_writer.masked_crc32c(data))


def _cut(path: pathlib.Path, step: int) -> None:
  """Cuts an event file off before its first event after `step`."""
  # One start wrote the file, so steps never fall. Readers stop at damage.
  data, begin = path.read_bytes(), 0
  while len(data) >= begin + 12:
    (length,) = struct.unpack_from('<Q', data, begin)
    end = begin + length + 16
    try:
      event = event_pb2.Event.FromString(data[begin + 12 : end - 4])
    except message.DecodeError:
      return
    if event.step > step:
      os.truncate(path, begin)
      return
    begin = end
