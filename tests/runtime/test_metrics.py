"""Tests for seedrl_jax/runtime/metrics.py."""

import os
import pathlib
import struct

import pytest
from tensorboardX import record_writer
from tensorboardX.proto import event_pb2

from seedrl_jax.runtime import curves, metrics, workdir

_HEADER = 'time/updates,time/env_frames'


@pytest.fixture(name='path')
def path_fixture(tmp_path):
  return tmp_path / 'metrics.csv'


def _csv_row(updates, frames, **more):
  return {metrics.UPDATES: updates, metrics.FRAMES: frames, **more}


def test_rows_are_there_when_written(path):
  log = metrics.CsvLog(path)
  log.write({'a': 1, 'b': 2.5})
  log.write({'a': 2, 'b': None})
  assert path.read_bytes() == b'a,b\n1,2.5\n2,\n'


def test_columns_grow(path):
  log = metrics.CsvLog(path)
  log.write({'a': 1})
  log.write({'c': 3, 'b': 2})
  log.write({'b': 4, 'a': 5})
  assert path.read_text() == 'a,c,b\n1,,\n,3,2\n5,,4\n'
  assert [p.name for p in path.parent.iterdir()] == ['metrics.csv']


def test_resumed_log_goes_on_in_the_same_file(path):
  metrics.CsvLog(path).write(_csv_row(1, 2, **{'x,y': 3}))
  log = metrics.CsvLog(path)
  log.write({'x,y': 4})
  log.write({'c': 5})
  assert path.read_text() == f'{_HEADER},"x,y",c\n1,2,3,\n,,4,\n,,,5\n'


@pytest.mark.parametrize('tail', ['3', '3,', '3,4'])
def test_half_written_last_line_is_cut_off(path, tail):
  path.write_text(f'{_HEADER}\n1,2\n{tail}')
  log = metrics.CsvLog(path)
  assert path.read_text() == f'{_HEADER}\n1,2\n'
  log.write(_csv_row(5, 6))
  assert path.read_text() == f'{_HEADER}\n1,2\n5,6\n'


def test_header_without_rows_keeps_its_columns(path):
  path.write_text(f'{_HEADER}\n')
  metrics.CsvLog(path).write({metrics.FRAMES: 1})
  assert path.read_text() == f'{_HEADER}\n,1\n'


@pytest.mark.parametrize(
  'data',
  [
    b'',
    b'no line',
    b'\x00\xff\xfe\n',
    b'a,b\n1,2\n',
    f'{_HEADER}\n1,2,3\n'.encode(),
    f'{_HEADER}\n1\n3,4\n'.encode(),
    f'{_HEADER}\none,two\n'.encode(),
    f'{_HEADER}\n"1"2,3\n'.encode(),
  ],
)
def test_what_is_no_log_is_refused_and_left(path, data):
  path.write_bytes(data)
  with pytest.raises(ValueError, match=r'.'):
    metrics.CsvLog(path)
  assert path.read_bytes() == data


def test_link_is_not_followed(path, tmp_path):
  (tmp_path / 'other').write_text(f'{_HEADER}\n1,2\n')
  path.symlink_to('other')
  with pytest.raises(ValueError, match='no file'):
    metrics.CsvLog(path)
  path.unlink()
  (tmp_path / 'metrics.csv.tmp').symlink_to('other')
  metrics.CsvLog(path).write({'a': 1})
  assert (tmp_path / 'other').read_text() == f'{_HEADER}\n1,2\n'


def test_roll_back_drops_what_will_be_done_again(path):
  log = metrics.CsvLog(path)
  for updates, frames in ((None, 1), (1, 10), (2, 20), (2, 25), (3, 30)):
    log.write(_csv_row(updates, frames))
  log.roll_back(2, 99)
  assert path.read_text() == f'{_HEADER}\n,1\n1,10\n2,20\n2,25\n'
  log.roll_back(2, 20)
  assert path.read_text() == f'{_HEADER}\n,1\n1,10\n2,20\n'
  log.roll_back(0, 20)
  log.write(_csv_row(9, 9))
  assert path.read_text() == f'{_HEADER}\n,1\n9,9\n'


def test_roll_back_of_nothing(path):
  metrics.CsvLog(path).roll_back(0, 0)
  assert not path.exists()


def test_failed_rewrite_keeps_the_columns(path, monkeypatch):
  log = metrics.CsvLog(path)
  log.write(_csv_row(1, 2))

  def fail(*args):
    raise OSError('full')

  with monkeypatch.context() as patch:
    patch.setattr(os, 'replace', fail)
    with pytest.raises(OSError, match='full'):
      log.write(_csv_row(3, 4, a=5))
  log.write(_csv_row(6, 7))
  assert path.read_text() == f'{_HEADER}\n1,2\n6,7\n'


def read_events(folder: pathlib.Path) -> list[tuple[str, float, int]]:
  """Returns all scalars as (tag, value, step)."""
  found = []
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
        found.append((value.tag, value.simple_value, event.step))
      data = data[4:]
  return found


def _starts(folder, *starts):
  """Writes an event file for each start, given its steps."""
  for steps in starts:
    log = metrics.EventLog(folder)
    for step in steps:
      log.write({'x': step / 4, 'none': None}, step)


def _steps(folder):
  return sorted(step for _, _, step in read_events(folder))


def test_event_is_on_disk_when_written(tmp_path):
  _starts(tmp_path / 'new', [1, 2], [3])
  assert sorted(read_events(tmp_path / 'new'), key=str) == [
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
  # Another run's files stay.
  elsewhere = tmp_path_factory.mktemp('elsewhere')
  _starts(elsewhere, [7, 8])
  (theirs,) = elsewhere.iterdir()
  before = theirs.read_bytes()
  (tmp_path / 'events.out.tfevents.linked').symlink_to(theirs)
  (tmp_path / 'events.out.tfevents.dangling').symlink_to('nowhere')
  log = metrics.EventLog(tmp_path)
  log.roll_back(step)
  assert theirs.read_bytes() == before
  for name in ('linked', 'dangling', 'other', 'short'):
    (tmp_path / f'events.out.tfevents.{name}').unlink()
  assert _steps(tmp_path) == kept
  log.write({'x': 1.0}, 10)
  assert _steps(tmp_path) == [*kept, 10]


@pytest.mark.parametrize('lost', [1, 9, 30])
def test_half_written_last_event_is_no_hindrance(tmp_path, lost):
  _starts(tmp_path, [1, 2, 3])
  (path,) = tmp_path.iterdir()
  path.write_bytes(path.read_bytes()[:-lost])
  metrics.EventLog(tmp_path).roll_back(1)
  assert _steps(tmp_path) == [1]


def _log(folder, tensorboard=True):
  """Returns a folder's logs and what they report."""
  said = []
  directory = workdir.Workdir(folder)
  return metrics.MetricsLog(directory, tensorboard, said.append), said


def _row(i):
  return {
    'time/elapsed_s': i,
    'time/updates': i,
    'time/env_frames': 100 * i,
    'x': i / 4,
    'y': None,
  }


def test_both_logs_say_the_same_and_go_back_together(tmp_path):
  for start in (0, 2):
    log, said = _log(tmp_path)
    log.roll_back(start, 100 * start)
    # The first start's last row is later than the second's first.
    for i in range(start + 1, start + 4):
      log.write(_row(i))
    assert not said
  events = read_events(tmp_path / 'tensorboard')
  values = [(v, s) for tag, v, s in events if tag == 'x']
  assert sorted(values) == [(i / 4, 100 * i) for i in range(1, 6)]
  assert {tag for tag, _, _ in events} == set(_row(0)) - {'y'}
  run = curves.read_run(tmp_path)
  assert run.columns['x'].tolist() == [i / 4 for i in range(1, 6)]
  assert run.columns['time/env_frames'].tolist() == [
    100 * i for i in range(1, 6)
  ]


def test_tensorboard_can_be_off(tmp_path):
  log, _ = _log(tmp_path, tensorboard=False)
  log.write(_row(5))
  log.roll_back(4, 10**9)
  assert [p.name for p in tmp_path.iterdir()] == ['metrics.csv']
  assert len((tmp_path / 'metrics.csv').read_text().splitlines()) == 1


@pytest.mark.parametrize(
  ('name', 'make'),
  [
    ('metrics.csv', lambda p: p.write_bytes(b'\x00\xff\n')),
    ('metrics.csv', lambda p: p.write_text('time,env_frames\n1,2\n')),
    ('metrics.csv', lambda p: p.mkdir()),
    ('metrics.csv', lambda p: p.symlink_to('nowhere')),
    ('tensorboard', lambda p: p.write_text('mine')),
    ('tensorboard', lambda p: p.symlink_to('nowhere')),
  ],
)
def test_what_cannot_be_continued_is_put_aside(tmp_path, name, make):
  make(tmp_path / name)
  log, said = _log(tmp_path)
  log.roll_back(0, 0)
  log.write(_row(1))
  assert os.path.lexists(tmp_path / f'{name}.damaged-1')
  (sentence,) = said
  assert sentence.startswith(f'{tmp_path / name} cannot be continued (')
  assert sentence.endswith(f'); it is now {name}.damaged-1.')
  assert curves.read_run(tmp_path).columns['x'].tolist() == [0.25]
  assert read_events(tmp_path / 'tensorboard')


@pytest.mark.parametrize('part', ['csv', 'events'])
def test_full_disk_costs_rows_and_not_the_run(tmp_path, monkeypatch, part):
  log, said = _log(tmp_path)
  log.write(_row(1))
  append = workdir.append_whole

  def fail(path, data):
    if ('tfevents' in path.name) == (part == 'events'):
      raise OSError(28, 'No space left on device')
    append(path, data)

  with monkeypatch.context() as patch:
    patch.setattr(workdir, 'append_whole', fail)
    log.write(_row(2))
    log.write(_row(3))
  assert said == [
    'The curves cannot be written (No space left on device); the run goes on '
    'without them until they can.'
  ]
  log.write(_row(4))
  found = read_events(tmp_path / 'tensorboard')
  assert [step for tag, _, step in found if tag == 'x'] == [100, 400]
  assert curves.read_run(tmp_path).columns['x'].tolist()[-1] == 1.0


@pytest.mark.parametrize('part', ['_rewrite', 'roll_back'])
def test_log_that_cannot_go_back_keeps_no_other_from_it(
  tmp_path, monkeypatch, part
):
  def fail(*args):
    raise OSError(28, 'No space left on device')

  log, said = _log(tmp_path)
  log.write(_row(1))
  broken = metrics.CsvLog if part == '_rewrite' else metrics.EventLog
  monkeypatch.setattr(broken, part, fail)
  log.roll_back(0, 0)
  assert len(said) == 1
  rows = metrics.read_csv(tmp_path / 'metrics.csv')[1]
  events = read_events(tmp_path / 'tensorboard')
  assert bool(rows) == (broken is metrics.CsvLog)
  assert bool(events) == (broken is metrics.EventLog)
