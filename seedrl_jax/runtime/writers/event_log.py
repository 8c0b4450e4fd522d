"""The writer 'tensorboard': event files."""

import os
import pathlib
import socket
import struct
import time

import ml_collections
from google.protobuf import message
from tensorboardX import record_writer
from tensorboardX.proto import event_pb2

from seedrl_jax.runtime import file_io, report
from seedrl_jax.runtime import workdir as workdir_lib
from seedrl_jax.runtime.writers import base

_PREFIX = 'events.out.tfevents.'


class EventLog(base.Writer):
  """Appends scalars to a new TensorBoard file: a TFRecord for each `Event`."""

  def __init__(self, workdir: pathlib.Path, config: ml_collections.ConfigDict):
    """Opens a run's folder of events."""
    del config
    self._folder = workdir_lib.Workdir(workdir).tensorboard
    self._path: pathlib.Path | None = None

  def write(self, row: base.Row) -> None:
    """Takes a report; its frames are TensorBoard's step."""
    if self._path is None:
      self._folder.mkdir(parents=True, exist_ok=True)
      # Two starts may fall into the same second.
      number = len(list(self._folder.iterdir()))
      name = f'{_PREFIX}{int(time.time())}.{socket.gethostname()}.{number}'
      first = event_pb2.Event(
        wall_time=time.time(), file_version='brain.Event:2'
      )
      file_io.append_whole(self._folder / name, _record(first))
      self._path = self._folder / name
    step = int(row[report.FRAMES] or 0)
    event = event_pb2.Event(wall_time=time.time(), step=step)
    for name, value in base.known(row).items():
      event.summary.value.add(tag=name, simple_value=value)
    file_io.append_whole(self._path, _record(event))

  def roll_back(self, updates: int, frames: int) -> None:
    # A `SessionLog` does not make TensorBoard 2.21 hide the old points.
    for path in self._folder.glob(f'{_PREFIX}*'):
      # A link's target is not this run's.
      if path.is_file() and not path.is_symlink():
        _cut(path, updates, frames)


def _record(event: event_pb2.Event) -> bytes:
  data = event.SerializeToString()
  length = struct.pack('<Q', len(data))
  return b''.join((length, _checksum(length), data, _checksum(data)))


def _checksum(data: bytes) -> bytes:
  return struct.pack('<I', record_writer.masked_crc32c(data))


def _cut(path: pathlib.Path, updates: int, frames: int) -> None:
  """Cuts an event file off before its first event beyond either number."""
  # One start wrote the file, so neither falls. Readers stop at damage.
  data, begin = path.read_bytes(), 0
  while len(data) >= begin + 12:
    (length,) = struct.unpack_from('<Q', data, begin)
    end = begin + length + 16
    try:
      event = event_pb2.Event.FromString(data[begin + 12 : end - 4])
    except message.DecodeError:
      return
    values = {value.tag: value.simple_value for value in event.summary.value}
    if event.step > frames or values.get(report.UPDATES, 0) > updates:
      os.truncate(path, begin)
      return
    begin = end
