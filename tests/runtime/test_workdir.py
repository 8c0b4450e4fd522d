"""Tests for seedrl_jax/runtime/workdir.py."""

import contextlib
import json
import os
import resource
import signal

import pytest

from configs import base as base_config
from seedrl_jax.runtime import workdir


def _config(**changes):
  config = base_config.get_config()
  config.update_from_flattened_dict(changes)
  return config


@contextlib.contextmanager
def _file_size_limit(size):
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_create_makes_parents_and_stays_quiet_the_second_time(tmp_path):
  directory = workdir.Workdir(tmp_path / 'a' / 'b')
  directory.create()
  directory.create()
  assert list(directory.path.iterdir()) == []


def test_create_refuses_what_cannot_be_made(tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(workdir.WorkdirError, match='cannot be written to'):
    workdir.Workdir(tmp_path / 'file').create()


def test_path_is_absolute_and_expanded(monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv('HOME', str(tmp_path / 'home'))
  assert workdir.Workdir('x').path == tmp_path / 'x'
  assert workdir.Workdir('~/x').path == tmp_path / 'home' / 'x'


@pytest.mark.parametrize('url', ['gs://bucket/run', 's3://b', 'file:///tmp/x'])
def test_url_is_refused_and_says_what_to_do(url):
  with pytest.raises(workdir.WorkdirError) as error:
    workdir.Workdir(url, '--teacher_workdir')
  assert str(error.value).startswith(f'--teacher_workdir={url} is a URL; give')
  assert '--backup=gs://' in str(error.value)


def test_config_comes_back_and_resumes_itself(tmp_path):
  config = _config()
  directory = workdir.Workdir(tmp_path)
  directory.write_config(config)
  found = directory.read_config()
  assert found.env.id == config.env.id
  assert found.env.frame_skip is None
  # Tuples are lists in JSON; that is no change.
  assert workdir.check_resumable(found, config) == []
  assert os.listdir(tmp_path) == ['config.json']


def test_read_config_without_a_run(tmp_path):
  with pytest.raises(workdir.WorkdirError, match='holds no run'):
    workdir.Workdir(tmp_path).read_config()


@pytest.mark.parametrize(
  'data',
  [
    *(b'{"seed": ', b'[1]', b'\x89\xff', b'{}', b'[' * 99_999),
    b'{"agent": "vtrace", "env": [], "network": {}}',
  ],
)
def test_read_config_that_is_damaged(tmp_path, data):
  (tmp_path / 'config.json').write_bytes(data)
  with pytest.raises(workdir.WorkdirError, match='is damaged'):
    workdir.Workdir(tmp_path).read_config()


def test_changes_that_can_be_followed_are_told():
  new = _config(total_env_frames=5, **{'loss.discount': 0.5, 'seed': 2})
  # Both are new; the second only begins like a fixed key.
  new.env.options.difficulty = 3
  new.network_notes = 'x'
  assert workdir.check_resumable(_config(), new) == [
    'env.options.difficulty: None -> 3',
    'loss.discount: 0.99 -> 0.5',
    'network_notes: None -> x',
    'seed: 1 -> 2',
    'total_env_frames: 2000000 -> 5',
  ]


@pytest.mark.parametrize(
  ('key', 'value'),
  [
    ('agent', 'r2d2'),
    ('env.id', 'Acrobot-v1'),
    ('env.factory', 'toys:make'),
    ('env.stack_num', 4),
    ('network.lstm_size', 8),
    ('network.hidden_sizes', (32,)),
    ('optimizer.name', 'rmsprop'),
    ('optimizer.rmsprop_centered', True),
    ('optimizer.rmsprop_momentum', 0.5),
  ],
)
def test_changes_that_the_parameters_cannot_follow_are_refused(key, value):
  with pytest.raises(workdir.WorkdirError, match='does not fit') as error:
    workdir.check_resumable(_config(), _config(**{key: value}))
  message = str(error.value)
  assert f'{key}: ' in message
  assert str(list(value) if isinstance(value, tuple) else value) in message


def test_name_of_what_a_factory_makes_may_change():
  factory = {'env.factory': 'toys:make'}
  old = _config(**factory, **{'env.id': 'toys:make'})
  assert workdir.check_resumable(old, _config(**factory)) == []


def test_every_refused_difference_is_named_and_no_other():
  new = _config(**{'network.lstm_size': 8, 'env.id': 'x', 'seed': 2})
  with pytest.raises(workdir.WorkdirError) as error:
    workdir.check_resumable(_config(), new)
  message = str(error.value)
  assert 'env.id: CartPole-v1 -> x; network.lstm_size: 0 -> 8' in message
  assert 'seed' not in message


def test_json_is_never_seen_half_written(tmp_path):
  path = tmp_path / 'summary.json'
  workdir.write_json(path, {'a': 1})

  class Unprintable:
    def __str__(self):
      raise RuntimeError('power cut')

  with pytest.raises(RuntimeError, match='power cut'):
    workdir.write_json(path, {'a': 2, 'b': Unprintable()})
  assert json.loads(path.read_text()) == {'a': 1}


def test_folder_on_a_disk_that_is_not_mounted_is_refused(tmp_path):
  (tmp_path / 'checkpoints').symlink_to('nowhere')
  with pytest.raises(workdir.WorkdirError, match='checkpoints is a link to no'):
    workdir.Workdir(tmp_path).clear(pytest.fail)
  assert (tmp_path / 'checkpoints').is_symlink()


def test_json_is_not_written_through_a_link(tmp_path):
  mine = tmp_path / 'mine'
  mine.write_text('mine')
  (tmp_path / 'config.json.tmp').symlink_to(mine)
  workdir.write_json(tmp_path / 'config.json', {'a': 1})
  assert mine.read_text() == 'mine'
  assert sorted(os.listdir(tmp_path)) == ['config.json', 'mine']
  (tmp_path / 'config.json.tmp').mkdir()
  workdir.write_json(tmp_path / 'config.json', {'a': 2})
  assert json.loads((tmp_path / 'config.json').read_text()) == {'a': 2}


def test_json_that_finds_no_room_is_one_sentence(tmp_path):
  path = tmp_path / 'summary.json'
  workdir.write_json(path, {'a': 1})
  signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
  with _file_size_limit(100), pytest.raises(workdir.NotWritten) as error:
    workdir.write_json(path, {'a': 'x' * 10_000})
  assert str(error.value) == f'{path} could not be written (File too large).'
  assert os.listdir(tmp_path) == ['summary.json']
  assert json.loads(path.read_text()) == {'a': 1}


def test_hosts_have_folders_of_their_own(tmp_path):
  first = workdir.Workdir(tmp_path)
  assert first.of_host(0) is first
  assert first.of_host(2).replay == tmp_path / 'hosts/2/replay'


def test_what_is_put_aside_keeps_its_content_and_takes_a_free_name(tmp_path):
  path = tmp_path / 'metrics.csv'
  path.write_text('a file')
  assert workdir.put_aside(path) == tmp_path / 'metrics.csv.damaged-1'
  path.mkdir()
  workdir.put_aside(path)
  path.symlink_to('nowhere')
  workdir.put_aside(path)
  assert (tmp_path / 'metrics.csv.damaged-1').read_text() == 'a file'
  assert (tmp_path / 'metrics.csv.damaged-2').is_dir()
  assert os.readlink(tmp_path / 'metrics.csv.damaged-3') == 'nowhere'
  assert not os.path.lexists(path)


def test_what_does_not_fit_is_not_appended_in_part(tmp_path):
  path = tmp_path / 'log'
  workdir.append_whole(path, b'12345')
  with _file_size_limit(8):
    with pytest.raises(OSError, match='No space left'):
      workdir.append_whole(path, b'6789a')
    workdir.append_whole(path, b'678')
  assert path.read_bytes() == b'12345678'
