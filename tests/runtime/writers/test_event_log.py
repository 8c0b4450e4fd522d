"""Tests for seedrl_jax/runtime/writers/event_log.py."""

import os
import pathlib
import struct

import pytest
from tensorboardX import record_writer
from tensorboardX.proto import event_pb2

from seedrl_jax.runtime.writers import event_log
from tests.runtime.writers import rows


def read_events(folder: pathlib.Path) -> list[tuple[str, float, int]]:
  """Returns all scalars as (tag, value, step)."""
  scalars = []
  for path in sorted(folder.iterdir()):
    data = path.read_bytes()
    while data:
      # A TFRecord: length, checksum, event, checksum.
      (length,) = struct.unpack('<Q', data[:8])
      content, data = data[12 : 12 + length], data[12 + length :]
      (checksum,) = struct.unpack('<I', data[:4])
      assert checksum == record_writer.masked_crc32c(content)
      event = event_pb2.Event.FromString(content)
      for value in event.summary.value:
        scalars.append((value.tag, value.simple_value, event.step))
      data = data[4:]
  return scalars


def steps(folder: pathlib.Path) -> list[int]:
  """Returns the steps of metric x in a work directory."""
  events = read_events(folder / 'tensorboard')
  return sorted(step for tag, _, step in events if tag == 'x')


def test_roll_back_leaves_what_is_not_of_the_run(tmp_path, tmp_path_factory):
  elsewhere = tmp_path_factory.mktemp('elsewhere')
  for folder in (tmp_path, elsewhere):
    event_log.EventLog(folder, None).write(rows.row(7, x=1))
  (theirs,) = (elsewhere / 'tensorboard').iterdir()
  before = theirs.read_bytes()
  prefix = str(tmp_path / 'tensorboard/events.out.tfevents.')
  os.symlink(theirs, prefix + 'linked')
  os.symlink('nowhere', prefix + 'dangling')
  for name, data in (('other', b'not an event file'), ('short', b'\x05')):
    pathlib.Path(prefix + name).write_bytes(data)
  event_log.EventLog(tmp_path, None).roll_back(0, 0)
  assert theirs.read_bytes() == before
  for name in ('linked', 'dangling', 'other', 'short'):
    os.unlink(prefix + name)
  assert steps(tmp_path) == []


@pytest.mark.parametrize('lost', [1, 9, 30])
def test_half_written_last_event_is_no_hindrance(tmp_path, lost):
  log = event_log.EventLog(tmp_path, None)
  for i in (1, 2, 3):
    log.write(rows.row(i, x=1))
  (path,) = (tmp_path / 'tensorboard').iterdir()
  path.write_bytes(path.read_bytes()[:-lost])
  log.roll_back(1, 100)
  assert steps(tmp_path) == [100]


@pytest.mark.parametrize(('updates', 'frames'), [(2, 500), (9, 200)])
def test_roll_back_cuts_by_updates_and_by_frames(tmp_path, updates, frames):
  log = event_log.EventLog(tmp_path, None)
  for i in (1, 2, 3, 4):
    log.write(rows.row(i, x=1))
  log.roll_back(updates, frames)
  assert steps(tmp_path) == [100, 200]
