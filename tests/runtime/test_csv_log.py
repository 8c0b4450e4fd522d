"""metrics.csv: rows that grow, are cut, and are taken back."""

import os

import pytest

from seedrl_jax.runtime import csv_log

_HEADER = 'time/updates,time/env_frames'


@pytest.fixture(name='path')
def path_fixture(tmp_path):
  return tmp_path / 'metrics.csv'


def _row(updates, frames, **more):
  return {csv_log.UPDATES: updates, csv_log.FRAMES: frames, **more}


def test_rows_are_there_when_written(path):
  log = csv_log.CsvLog(path)
  log.write({'a': 1, 'b': 2.5})
  log.write({'a': 2, 'b': None})
  assert path.read_bytes() == b'a,b\n1,2.5\n2,\n'


def test_columns_grow(path):
  log = csv_log.CsvLog(path)
  log.write({'a': 1})
  log.write({'c': 3, 'b': 2})
  log.write({'b': 4, 'a': 5})
  assert path.read_text() == 'a,c,b\n1,,\n,3,2\n5,,4\n'
  assert [p.name for p in path.parent.iterdir()] == ['metrics.csv']


def test_resumed_log_goes_on_in_the_same_file(path):
  csv_log.CsvLog(path).write(_row(1, 2, **{'x,y': 3}))
  log = csv_log.CsvLog(path)
  log.write({'x,y': 4})
  log.write({'c': 5})
  assert path.read_text() == f'{_HEADER},"x,y",c\n1,2,3,\n,,4,\n,,,5\n'


@pytest.mark.parametrize('tail', ['3', '3,', '3,4'])
def test_half_written_last_line_is_cut_off(path, tail):
  path.write_text(f'{_HEADER}\n1,2\n{tail}')
  log = csv_log.CsvLog(path)
  assert path.read_text() == f'{_HEADER}\n1,2\n'
  log.write(_row(5, 6))
  assert path.read_text() == f'{_HEADER}\n1,2\n5,6\n'


def test_header_without_rows_keeps_its_columns(path):
  path.write_text(f'{_HEADER}\n')
  csv_log.CsvLog(path).write({csv_log.FRAMES: 1})
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
    csv_log.CsvLog(path)
  assert path.read_bytes() == data


def test_link_is_not_followed(path, tmp_path):
  (tmp_path / 'other').write_text(f'{_HEADER}\n1,2\n')
  path.symlink_to('other')
  with pytest.raises(ValueError, match='no file'):
    csv_log.CsvLog(path)
  path.unlink()
  (tmp_path / 'metrics.csv.tmp').symlink_to('other')
  csv_log.CsvLog(path).write({'a': 1})
  assert (tmp_path / 'other').read_text() == f'{_HEADER}\n1,2\n'


def test_roll_back_drops_what_will_be_done_again(path):
  log = csv_log.CsvLog(path)
  for updates, frames in ((None, 1), (1, 10), (2, 20), (2, 25), (3, 30)):
    log.write(_row(updates, frames))
  assert log.roll_back(2) == 1
  assert log.roll_back(2, env_frames=20) == 1
  assert path.read_text() == f'{_HEADER}\n,1\n1,10\n2,20\n'
  assert log.roll_back(2, env_frames=20) == 0
  assert log.roll_back(0) == 2
  log.write(_row(9, 9))
  assert path.read_text() == f'{_HEADER}\n,1\n9,9\n'


def test_roll_back_of_nothing(path):
  assert csv_log.CsvLog(path).roll_back(0) == 0
  assert not path.exists()


def test_failed_rewrite_keeps_the_columns(path, monkeypatch):
  log = csv_log.CsvLog(path)
  log.write(_row(1, 2))

  def fail(*args):
    raise OSError('full')

  with monkeypatch.context() as patch:
    patch.setattr(os, 'replace', fail)
    with pytest.raises(OSError, match='full'):
      log.write(_row(3, 4, a=5))
  log.write(_row(6, 7))
  assert path.read_text() == f'{_HEADER}\n1,2\n6,7\n'
