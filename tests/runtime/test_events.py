"""TensorBoard's event files, read as TensorBoard reads them."""

import pathlib
import struct

import pytest
from tensorboardX import record_writer
from tensorboardX.proto import event_pb2

from seedrl_jax.runtime import events


def read(folder: pathlib.Path) -> list[tuple[str, float, int]]:
  """Returns the scalars in all event files as (tag, value, step)."""
  found = []
  for path in sorted(folder.iterdir()):
    data = path.read_bytes()
    while data:
      # A TFRecord: length, its checksum, the event, its checksum.
      (length,) = struct.unpack('<Q', data[:8])
      content, data = data[12 : 12 + length], data[12 + length :]
      (checksum,) = struct.unpack('<I', data[:4])
      assert checksum == record_writer.masked_crc32c(content)
      event = event_pb2.Event.FromString(content)
      for value in event.summary.value:
        found.append((value.tag, value.simple_value, event.step))
      data = data[4:]
  return found


def _starts(folder, *starts):
  """Writes one file for each start, given the steps of its events."""
  for steps in starts:
    log = events.EventLog(folder)
    for step in steps:
      log.write({'x': step / 4, 'none': None}, step)


def _steps(folder):
  return sorted(step for _, _, step in read(folder))


def test_event_is_on_disk_when_written(tmp_path):
  _starts(tmp_path / 'new', [1, 2], [3])
  assert sorted(read(tmp_path / 'new'), key=str) == [
    ('x', 0.25, 1),
    ('x', 0.5, 2),
    ('x', 0.75, 3),
  ]
  assert len(list((tmp_path / 'new').iterdir())) == 2


@pytest.mark.parametrize(
  ('step', 'kept'), [(5, [1, 2, 3, 4, 5]), (9, [1, 2, 3, 4, 5, 9]), (0, [])]
)
def test_roll_back_drops_later_steps_of_all_starts(
  tmp_path, tmp_path_factory, step, kept
):
  _starts(tmp_path, [1, 2, 3], [4, 5, 9])
  (tmp_path / 'events.out.tfevents.other').write_text('not an event file')
  (tmp_path / 'events.out.tfevents.short').write_bytes(b'\x05')
  # What is another run's stays as it is.
  elsewhere = tmp_path_factory.mktemp('elsewhere')
  _starts(elsewhere, [7, 8])
  (theirs,) = elsewhere.iterdir()
  before = theirs.read_bytes()
  (tmp_path / 'events.out.tfevents.linked').symlink_to(theirs)
  (tmp_path / 'events.out.tfevents.dangling').symlink_to('nowhere')
  log = events.EventLog(tmp_path)
  log.roll_back(step)
  assert theirs.read_bytes() == before
  for name in ('linked', 'dangling'):
    (tmp_path / f'events.out.tfevents.{name}').unlink()
  for name in ('other', 'short'):
    (tmp_path / f'events.out.tfevents.{name}').unlink()
  assert _steps(tmp_path) == kept
  log.write({'x': 1.0}, 10)
  assert _steps(tmp_path) == [*kept, 10]


@pytest.mark.parametrize('lost', [1, 9, 30])
def test_half_written_last_event_is_no_hindrance(tmp_path, lost):
  _starts(tmp_path, [1, 2, 3])
  (path,) = tmp_path.iterdir()
  path.write_bytes(path.read_bytes()[:-lost])
  events.EventLog(tmp_path).roll_back(1)
  assert _steps(tmp_path) == [1]
