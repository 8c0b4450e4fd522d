"""Tests for seedrl_jax/runtime/progress.py."""

import io
import os
import pathlib
import struct

import pytest
from tensorboardX import record_writer
from tensorboardX.proto import event_pb2

from seedrl_jax.runtime import progress, workdir


class _Terminal(io.StringIO):
  def isatty(self):
    return True


@pytest.mark.parametrize('out', [io.StringIO(), _Terminal()])
def test_file_or_terminal_that_knows_no_codes_gets_plain_lines(
  monkeypatch, out
):
  monkeypatch.setenv('TERM', 'dumb' if out.isatty() else 'xterm')
  line = progress.ProgressLine(out)
  line.update('one')
  line.say('two')
  line.update('three')
  assert out.getvalue() == 'one\ntwo\nthree\n'


def test_terminal_gets_one_line_that_changes_in_rows_if_narrow(monkeypatch):
  monkeypatch.setenv('TERM', 'xterm')
  monkeypatch.setenv('COLUMNS', '12')
  out = _Terminal()
  line = progress.ProgressLine(out)
  line.say('before')
  line.update('10 frames | lag 2 | waits')
  # Each text clears the one before: up to its first row, back and down.
  assert out.getvalue() == 'before\n10 frames |\nlag 2 |\nwaits'
  line.update('0123456789abc')
  assert out.getvalue().endswith('waits\x1b[2A\r\x1b[J0123456789a\nbc')
  line.say('after')
  assert out.getvalue().endswith('bc\x1b[1A\r\x1b[Jafter\n')


@pytest.mark.parametrize(
  ('stolen', 'end'),
  [(0.1, 'envs (80%)'), (0.23, 'envs (80%) | 23% stolen by other guests')],
)
def test_progress_says_what_was_stolen_if_it_was_much(stolen, end):
  row = {
    progress.UPDATES: 12,
    progress.FRAMES: 5_000,
    progress.STOLEN: stolen,
    'time/frames_per_s': 12_345.6,
    'rollout/return': 1.25,
    'eval/return': None,
    'replay/policy_lag_mean_batches': 0.5,
  }
  assert progress.progress_text(row, 10_000, 'envs (80%)') == (
    '5000/10k frames (50%) | 12.3k frames/s | return 1.2 (eval -) | '
    f'12 updates | lag 0.5 | waits for {end}'
  )


# -- curves -----------------------------------------------------------------

_HEADER = 'time/updates,time/env_frames'


def _log(folder, tensorboard=True):
  """Returns a folder's curves and what they report."""
  said = []
  directory = workdir.Workdir(folder)
  return progress.MetricsLog(directory, tensorboard, said.append), said


def _row(updates, frames=None, **more):
  frames = 100 * updates if frames is None else frames
  return {'time/updates': updates, 'time/env_frames': frames, **more}


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


def _steps(folder):
  events = read_events(folder / 'tensorboard')
  return sorted(step for tag, _, step in events if tag == 'x')


def test_columns_grow_over_starts(tmp_path):
  path = tmp_path / 'metrics.csv'
  log, _ = _log(tmp_path, tensorboard=False)
  log.write(_row(1, x=2.5))
  log.write(_row(2, y=3, x=None))
  assert path.read_text() == f'{_HEADER},x,y\n1,100,2.5,\n2,200,,3\n'
  log, _ = _log(tmp_path, tensorboard=False)
  log.write(_row(3, z=4))
  assert path.read_text() == (
    f'{_HEADER},x,y,z\n1,100,2.5,,\n2,200,,3,\n3,300,,,4\n'
  )
  assert [p.name for p in tmp_path.iterdir()] == ['metrics.csv']


@pytest.mark.parametrize('tail', ['3', '3,', '3,4'])
def test_half_written_last_line_is_cut_off(tmp_path, tail):
  path = tmp_path / 'metrics.csv'
  path.write_text(f'{_HEADER}\n1,2\n{tail}')
  log, said = _log(tmp_path, tensorboard=False)
  log.write(_row(5, 6))
  assert path.read_text() == f'{_HEADER}\n1,2\n5,6\n'
  assert not said


@pytest.mark.parametrize('data', [b'', b'\x00\xff\xfe\n', b'a,b\n1,2\n'])
def test_what_is_no_curve_is_put_aside(tmp_path, data):
  path = tmp_path / 'metrics.csv'
  path.write_bytes(data)
  log, (sentence,) = _log(tmp_path)
  log.roll_back(0, 0)
  log.write(_row(1))
  assert sentence.startswith(f'{path} cannot be continued (')
  assert sentence.endswith('); it is now metrics.csv.damaged-1.')
  assert (tmp_path / 'metrics.csv.damaged-1').read_bytes() == data
  assert path.read_text() == f'{_HEADER}\n1,100\n'


def test_roll_back_drops_what_is_damaged_or_will_be_done_again(tmp_path):
  path = tmp_path / 'metrics.csv'
  rows = '1,10\n2,20\n2,25\n3,30\n'
  path.write_text(f'{_HEADER}\n\x00\n1,2,3\nx,1\n{rows}')
  log, _ = _log(tmp_path, tensorboard=False)
  log.roll_back(2, 99)
  assert path.read_text() == f'{_HEADER}\n1,10\n2,20\n2,25\n'
  log.roll_back(2, 20)
  assert path.read_text() == f'{_HEADER}\n1,10\n2,20\n'
  log.roll_back(0, 20)
  log.write(_row(9, 9))
  assert path.read_text() == f'{_HEADER}\n9,9\n'


def test_both_curves_say_the_same_and_go_back_together(tmp_path):
  for start in (0, 2, 4):
    log, said = _log(tmp_path)
    log.roll_back(start, 100 * start)
    # A start's last row is later than the next one's first.
    for i in range(start + 1, start + 4):
      log.write(_row(i, x=i / 4, y=None))
    assert not said
  values = [
    (v, step)
    for tag, v, step in read_events(tmp_path / 'tensorboard')
    if tag == 'x'
  ]
  assert sorted(values) == [(i / 4, 100 * i) for i in range(1, 8)]
  assert len(list((tmp_path / 'tensorboard').iterdir())) == 3
  _, rows = progress.read_csv(tmp_path / 'metrics.csv')
  assert rows == [[str(i), str(100 * i), str(i / 4), ''] for i in range(1, 8)]


def test_roll_back_leaves_what_is_not_of_the_run(tmp_path, tmp_path_factory):
  elsewhere = tmp_path_factory.mktemp('elsewhere')
  for folder in (tmp_path, elsewhere):
    log, _ = _log(folder)
    log.write(_row(7, x=1))
  (theirs,) = (elsewhere / 'tensorboard').iterdir()
  before = theirs.read_bytes()
  prefix = str(tmp_path / 'tensorboard/events.out.tfevents.')
  os.symlink(theirs, prefix + 'linked')
  os.symlink('nowhere', prefix + 'dangling')
  for name, data in (('other', b'not an event file'), ('short', b'\x05')):
    pathlib.Path(prefix + name).write_bytes(data)
  log, said = _log(tmp_path)
  log.roll_back(0, 0)
  assert theirs.read_bytes() == before and not said
  for name in ('linked', 'dangling', 'other', 'short'):
    os.unlink(prefix + name)
  assert _steps(tmp_path) == []


@pytest.mark.parametrize('lost', [1, 9, 30])
def test_half_written_last_event_is_no_hindrance(tmp_path, lost):
  log, _ = _log(tmp_path)
  for i in (1, 2, 3):
    log.write(_row(i, x=1))
  (path,) = (tmp_path / 'tensorboard').iterdir()
  path.write_bytes(path.read_bytes()[:-lost])
  log.roll_back(1, 100)
  assert _steps(tmp_path) == [100]


@pytest.mark.parametrize('part', ['csv', 'tfevents'])
def test_full_disk_costs_rows_and_not_the_run(tmp_path, monkeypatch, part):
  log, said = _log(tmp_path)
  log.write(_row(1, x=1))
  append = workdir.append_whole

  def fail(path, data):
    if part in path.name:
      raise OSError(28, 'No space left on device')
    append(path, data)

  with monkeypatch.context() as patch:
    patch.setattr(workdir, 'append_whole', fail)
    log.write(_row(2, x=1))
    log.write(_row(3, x=1))
  assert said == [
    'The curves cannot be written (No space left on device); the run goes on '
    'without them until they can.'
  ]
  log.write(_row(4, x=1))
  assert _steps(tmp_path) == [100, 400]
  _, rows = progress.read_csv(tmp_path / 'metrics.csv')
  assert rows[-1] == ['4', '400', '1']


def test_rows_that_cannot_be_dropped_keep_no_events_from_it(
  tmp_path, monkeypatch
):
  def fail(*args):
    raise OSError(28, 'No space left on device')

  log, said = _log(tmp_path)
  log.write(_row(1, x=1))
  monkeypatch.setattr(os, 'replace', fail)
  log.roll_back(0, 0)
  assert said == [
    'The curves cannot be written (No space left on device); the run goes on '
    'without them until they can.'
  ]
  assert progress.read_csv(tmp_path / 'metrics.csv')[1] == [['1', '100', '1']]
  assert not _steps(tmp_path)
