"""The logs of a run: rows that grow, are cut, and are taken back."""

import struct
import threading

import pytest
from tensorboardX.proto import event_pb2

from seedrl_jax.runtime import curves, metrics, workdir
from tests import runs


@pytest.fixture(name='path')
def path_fixture(tmp_path):
  return tmp_path / 'metrics.csv'


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
  metrics.CsvLog(path).write({'a': 1, 'b': 'x,y'})
  log = metrics.CsvLog(path)
  log.write({'b': 2})
  log.write({'c': 3})
  assert path.read_text() == 'a,b,c\n1,"x,y",\n,2,\n,,3\n'


@pytest.mark.parametrize('tail', ['3', '3,', '3,4'])
def test_half_written_last_line_is_cut_off(path, tail):
  path.write_text('a,b\n1,2\n' + tail)
  log = metrics.CsvLog(path)
  assert path.read_text() == 'a,b\n1,2\n'
  log.write({'a': 5, 'b': 6})
  assert path.read_text() == 'a,b\n1,2\n5,6\n'


@pytest.mark.parametrize('text', ['', 'a,'])
def test_file_without_a_whole_header_starts_anew(path, text):
  path.write_text(text)
  metrics.CsvLog(path).write({'b': 1})
  assert [line for line in path.read_text().split('\n') if line] == ['b', '1']


def test_header_without_rows_keeps_its_columns(path):
  path.write_text('a,b\n')
  metrics.CsvLog(path).write({'b': 1})
  assert path.read_text() == 'a,b\n,1\n'


def test_roll_back_drops_what_will_be_done_again(path):
  log = metrics.CsvLog(path)
  for updates, steps in ((None, 1), (1, 10), (2, 20), (2, 25), (3, 30)):
    log.write({'updates': updates, 'env_steps': steps})
  assert log.roll_back(2) == 1
  assert log.roll_back(2, env_steps=20) == 1
  assert path.read_text() == 'updates,env_steps\n,1\n1,10\n2,20\n'
  assert log.roll_back(2, env_steps=20) == 0
  assert log.roll_back(0) == 2
  log.write({'updates': 9, 'env_steps': 9})
  assert path.read_text() == 'updates,env_steps\n,1\n9,9\n'


def test_roll_back_of_nothing(path):
  assert metrics.CsvLog(path).roll_back(0) == 0
  assert not path.exists()


def _events(folder):
  """Returns the scalars in all event files as (tag, value, step)."""
  found = []
  for path in sorted(folder.iterdir()):
    data = path.read_bytes()
    while data:
      # A TFRecord: length, its checksum, the event, its checksum.
      (length,) = struct.unpack('<Q', data[:8])
      event = event_pb2.Event.FromString(data[12 : 12 + length])
      for value in event.summary.value:
        found.append((value.tag, value.simple_value, event.step))
      data = data[16 + length :]
  return found


def test_both_logs_say_the_same(tmp_path):
  directory = workdir.Workdir(tmp_path)
  for start in (0, 2):
    log = metrics.MetricsLog(directory, tensorboard=True)
    for i in (start + 1, start + 2):
      row = {'time': i, 'env_frames': 100 * i, 'x': i / 4, 'y': None}
      log.write(row)
    log.close()
  events = _events(directory.tensorboard)
  values = [(v, s) for tag, v, s in events if tag == 'x']
  assert sorted(values) == [(0.25, 100), (0.5, 200), (0.75, 300), (1.0, 400)]
  assert {tag for tag, _, _ in events} == {'time', 'x'}
  run = curves.read_run(tmp_path)
  assert run.columns['x'].tolist() == [0.25, 0.5, 0.75, 1.0]
  assert run.columns['env_frames'].tolist() == [100, 200, 300, 400]


def test_event_is_on_disk_when_written_and_nothing_stays_open(tmp_path):
  threads, files = set(threading.enumerate()), runs.open_files()
  directory = workdir.Workdir(tmp_path)
  log = metrics.MetricsLog(directory, tensorboard=True)
  log.write({'env_frames': 3, 'x': 0.5})
  assert _events(directory.tensorboard) == [('x', 0.5, 3)]
  log.close()
  assert set(threading.enumerate()) <= threads
  assert runs.open_files() <= files


def test_tensorboard_can_be_off(tmp_path):
  log = metrics.MetricsLog(workdir.Workdir(tmp_path), tensorboard=False)
  log.write({'env_frames': 1, 'updates': 5})
  assert log.roll_back(4) == 1
  log.close()
  assert [p.name for p in tmp_path.iterdir()] == ['metrics.csv']
