"""TensorBoard's event files: appended whole, and cut where a run goes back.

A file is a sequence of TFRecords, each of one `Event`.
"""

import pathlib
import socket
import struct
import time
from collections.abc import Mapping

from google.protobuf import message
from tensorboardX import record_writer, summary
from tensorboardX.proto import event_pb2

from seedrl_jax.runtime import workdir

_PREFIX = 'events.out.tfevents.'


class EventLog:
  """Appends scalars to an event file of its own, made by the first."""

  def __init__(self, folder: pathlib.Path):
    """Names the folder, which may hold files of earlier starts."""
    self._folder = folder
    self._path: pathlib.Path | None = None

  def write(self, row: Mapping[str, float | None], step: int) -> None:
    """Appends one event with all numbers of `row` but None.

    Raises:
      OSError: if it cannot; what was there stays as it was.
    """
    if self._path is None:
      self._path = self._begin()
    event = event_pb2.Event(wall_time=time.time(), step=step)
    for name, value in row.items():
      if value is not None:
        event.summary.MergeFrom(summary.scalar(name, value))
    workdir.append_whole(self._path, _record(event))

  def roll_back(self, step: int) -> None:
    """Drops what earlier starts wrote after `step`.

    Not by a `SessionLog`: TensorBoard 2.21 shows the old points all the same.
    """
    for path in self._folder.glob(f'{_PREFIX}*'):
      # What a link leads to is not this run's.
      if path.is_file() and not path.is_symlink():
        _cut(path, step)

  def _begin(self) -> pathlib.Path:
    self._folder.mkdir(parents=True, exist_ok=True)
    # By the second: two starts in one must not share a name.
    number = len(list(self._folder.iterdir()))
    name = f'{_PREFIX}{int(time.time())}.{socket.gethostname()}.{number}'
    first = event_pb2.Event(wall_time=time.time(), file_version='brain.Event:2')
    workdir.append_whole(self._folder / name, _record(first))
    return self._folder / name


def _record(event: event_pb2.Event) -> bytes:
  """Returns an event as TFRecord: its length, it, and a checksum of each."""
  data = event.SerializeToString()
  length = struct.pack('<Q', len(data))
  return b''.join((length, _checksum(length), data, _checksum(data)))


def _checksum(data: bytes) -> bytes:
  return struct.pack('<I', record_writer.masked_crc32c(data))


def _cut(path: pathlib.Path, step: int) -> None:
  """Cuts a file off before its first event after `step`.

  A file is of one start, so its steps never fall. Behind damage no reader
  goes on; there it stays as it is.
  """
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
