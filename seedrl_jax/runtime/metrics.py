"""Writes a run's metrics to metrics.csv and TensorBoard."""

import contextlib
import csv
import os
import pathlib
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping

from google.protobuf import message
from tensorboardX import record_writer, summary
from tensorboardX.proto import event_pb2

from seedrl_jax.runtime import workdir as workdir_lib

Metrics = Mapping[str, float | None]
_Rows = list[list[str]]
_Say = Callable[[str], None]

UPDATES, FRAMES = 'time/updates', 'time/env_frames'
_EVENTS_PREFIX = 'events.out.tfevents.'


class MetricsLog:
  """Writes reports to a run's logs, without those that cannot be written."""

  def __init__(
    self, workdir: workdir_lib.Workdir, tensorboard: bool, say: _Say
  ):
    """Opens the logs; puts aside and reports what cannot be continued."""
    self._say = say
    self._is_failing = False
    self._csv = _open_csv(workdir.metrics_csv, say)
    folder = workdir.tensorboard
    if tensorboard and os.path.lexists(folder) and not folder.is_dir():
      _put_aside(folder, 'it is no folder', say)
    self._events = EventLog(folder) if tensorboard else None

  def roll_back(self, updates: int, env_frames: int) -> None:
    """Drops rows later than a checkpoint; see `CsvLog.roll_back`."""
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
        self._events.write(row, int(row[FRAMES] or 0))
      self._is_failing = False

  @contextlib.contextmanager
  def _suppress_errors(self) -> Iterator[None]:
    """Reports a log that cannot be written, once until it can be again."""
    try:
      yield
    except OSError as e:
      if not self._is_failing:
        self._say(
          f'The curves cannot be written ({e.strerror}); the run goes on '
          'without them until they can.'
        )
      self._is_failing = True


class CsvLog:
  """Appends rows to a CSV file whose columns may grow.

  A new column rewrites the file; a resumed run continues it.
  """

  def __init__(self, path: pathlib.Path):
    """Opens the log and cuts off a half-written last line.

    Raises:
      ValueError: if the file is not such a log.
      OSError: if it cannot be read.
    """
    self._path = path
    self._columns: list[str] = []
    if os.path.lexists(path):
      self._columns = _checked(path)
      # Works on a full disk.
      os.truncate(path, path.read_bytes().rfind(b'\n') + 1)

  def write(self, row: Metrics) -> None:
    """Appends a row; None leaves a cell empty.

    Raises:
      OSError: if the row cannot be written; the log is then unchanged.
    """
    new = [name for name in row if name not in self._columns]
    if new:
      self._rewrite([*self._columns, *new], self._rows())
    values = (row.get(name) for name in self._columns)
    line = ','.join('' if value is None else str(value) for value in values)
    workdir_lib.append_whole(self._path, f'{line}\n'.encode())

  def roll_back(self, updates: int, env_frames: int) -> None:
    """Drops rows later than a checkpoint.

    Environments go on while a checkpoint is written, so a row of the same
    update may be ahead of it in frames.
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

  def _number(self, row: list[str], name: str) -> float:
    return float(row[self._columns.index(name)] or 0)

  def _rows(self) -> _Rows:
    return read_csv(self._path)[1] if self._columns else []

  def _rewrite(self, columns: list[str], rows: _Rows) -> None:
    temporary = self._path.with_name(self._path.name + '.tmp')
    temporary.unlink(missing_ok=True)
    with temporary.open('x', newline='') as f:
      writer = csv.writer(f, lineterminator='\n')
      writer.writerow(columns)
      writer.writerows([*r, *[''] * (len(columns) - len(r))] for r in rows)
    os.replace(temporary, self._path)
    self._columns = columns


class EventLog:
  """Appends scalars to a new TensorBoard file: a TFRecord for each `Event`."""

  def __init__(self, folder: pathlib.Path):
    self._folder = folder
    self._path: pathlib.Path | None = None

  def write(self, row: Metrics, step: int) -> None:
    """Appends one event with the numbers of `row` that are not None.

    Raises:
      OSError: if it cannot be written; the file is then unchanged.
    """
    if self._path is None:
      self._path = self._begin()
    event = event_pb2.Event(wall_time=time.time(), step=step)
    for name, value in row.items():
      if value is not None:
        event.summary.MergeFrom(summary.scalar(name, value))
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


def read_csv(path: pathlib.Path) -> tuple[list[str], _Rows]:
  """Returns the header and rows of a CSV file, without an unfinished line.

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


def _open_csv(path: pathlib.Path, say: _Say) -> CsvLog:
  try:
    return CsvLog(path)
  except (OSError, ValueError) as e:
    _put_aside(path, str(e), say)
    return CsvLog(path)


def _put_aside(path: pathlib.Path, reason: str, say: _Say) -> None:
  aside = workdir_lib.put_aside(path)
  say(f'{path} cannot be continued ({reason}); it is now {aside.name}.')


def _checked(path: pathlib.Path) -> list[str]:
  """Returns a log's columns; raises ValueError if it is no log."""
  if path.is_symlink() or not path.is_file():
    raise ValueError('it is no file')
  header, rows = read_csv(path)
  if missing := [name for name in (UPDATES, FRAMES) if name not in header]:
    raise ValueError(f'it has no column {" or ".join(missing)}')
  for row in rows:
    if len(row) != len(header):
      raise ValueError('a row has not as many cells as the header')
    for cell in filter(None, row):
      float(cell)
  return header


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
      with path.open('r+b') as f:
        f.truncate(begin)
      return
    begin = end
