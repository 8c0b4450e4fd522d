"""Tests of files that an interruption costs nothing."""

import contextlib
import json
import os
import resource
import signal

import pytest

from seedrl_jax.runtime import file_io


@contextlib.contextmanager
def _file_size_limit(size):
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_json_is_not_written_through_a_link(tmp_path):
  mine = tmp_path / 'mine'
  mine.write_text('mine')
  (tmp_path / 'config.json.tmp').symlink_to(mine)
  file_io.write_json(tmp_path / 'config.json', {'a': 1})
  assert mine.read_text() == 'mine'
  assert json.loads((tmp_path / 'config.json').read_text()) == {'a': 1}
  assert sorted(os.listdir(tmp_path)) == ['config.json', 'mine']


def test_json_that_finds_no_room_is_one_sentence(tmp_path):
  path = tmp_path / 'summary.json'
  file_io.write_json(path, {'a': 1})
  signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
  with _file_size_limit(100), pytest.raises(file_io.NotWritten) as error:
    file_io.write_json(path, {'a': 'x' * 10_000})
  assert str(error.value) == f'{path} could not be written (File too large).'
  assert os.listdir(tmp_path) == ['summary.json']
  assert json.loads(path.read_text()) == {'a': 1}


def test_what_is_put_aside_keeps_its_content_and_takes_a_free_name(tmp_path):
  path = tmp_path / 'metrics.csv'
  path.write_text('a file')
  assert file_io.put_aside(path) == tmp_path / 'metrics.csv.damaged-1'
  path.symlink_to('nowhere')
  file_io.put_aside(path)
  assert (tmp_path / 'metrics.csv.damaged-1').read_text() == 'a file'
  assert os.readlink(tmp_path / 'metrics.csv.damaged-2') == 'nowhere'
  assert not os.path.lexists(path)


def test_what_does_not_fit_is_not_appended_in_part(tmp_path):
  path = tmp_path / 'log'
  file_io.append_whole(path, b'12345')
  with _file_size_limit(8):
    with pytest.raises(OSError, match='No space left'):
      file_io.append_whole(path, b'6789a')
    file_io.append_whole(path, b'678')
  assert path.read_bytes() == b'12345678'
