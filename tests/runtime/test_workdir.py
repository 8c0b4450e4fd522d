"""Tests for seedrl_jax/runtime/workdir.py."""

import contextlib
import json
import math
import os
import shutil
import socket
import subprocess
import sys
from concurrent import futures

import jax
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.configs import base as base_config
from seedrl_jax.evaluation import playing
from seedrl_jax.run import saved_config
from seedrl_jax.runtime import (
  workdir,
)

_SPEC = types.EnvSpec(
  types.StreamSpec(
    {
      'shape': types.ArraySpec(
        (2,), np.dtype(np.int32), (range(3), range(-1, 7))
      ),
      'deeper': {12: types.ArraySpec((3, 8, 8), np.dtype(np.uint8))},
    },
    types.ActionSpec((2,), np.dtype('f4'), (-1.0, -math.inf), (0.1, math.inf)),
    action_repeat=4,
    name='Toy-v0',
    parts={'x': types.ArraySpec((2,), np.dtype(np.float32))},
  ),
  num_envs=8,
  num_eval_envs=2,
)


def _config(**changes):
  config = base_config.get_config()
  config.update_from_flattened_dict(changes)
  return config


@pytest.mark.parametrize('url', ['gs://bucket/run', 'file:///tmp/x'])
def test_url_is_refused_and_says_what_to_do(url):
  with pytest.raises(workdir.WorkdirError) as error:
    workdir.Workdir(url, '--teacher_workdir')
  assert str(error.value).startswith(f'--teacher_workdir={url} is a URL; give')
  assert '--backup=gs://' in str(error.value)


# -- the lock ---------------------------------------------------------------

_HOLD = """
import sys
from seedrl_jax.run import saved_config
from seedrl_jax.runtime import workdir

held = workdir.Workdir(sys.argv[1]).acquire(print)
print('held', flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def _held(path):
  """Starts a process that locks the directory."""
  process = subprocess.Popen(
    [sys.executable, '-c', _HOLD, path],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  )
  with process:
    try:
      assert process.stdout.readline() == 'held\n'
      yield process
    finally:
      process.kill()


def _acquire(path):
  """Locks a directory for a moment; returns what is said."""
  messages = []
  workdir.Workdir(path).acquire(messages.append).close()
  return messages


def test_a_second_process_is_told_who_has_it_until_that_is_killed(tmp_path):
  with _held(tmp_path) as process:
    owners = {
      None: f'process {process.pid} on {socket.gethostname()}',
      '7 far\n': 'process 7 on far',
      '': 'another process',
      '\x1b[2J 7\n': 'another process',
    }
    for text, owner in owners.items():
      if text is not None:
        (tmp_path / 'run.lock').write_text(text)
      with pytest.raises(workdir.WorkdirError) as error:
        _acquire(tmp_path)
      assert str(error.value) == (
        f'--workdir={tmp_path} is in use by {owner}; stop that run, or choose '
        'another folder.'
      )
    process.kill()
    process.wait()
    assert not _acquire(tmp_path)
  assert (tmp_path / 'run.lock').read_text().startswith(f'{os.getpid()} ')


def test_child_processes_do_not_keep_the_lock(tmp_path):
  with workdir.Workdir(tmp_path / 'a/b').acquire(pytest.fail):
    child = subprocess.Popen(['cat'], stdin=subprocess.PIPE, close_fds=False)
  with child, _held(tmp_path / 'a/b'):
    assert child.poll() is None
    child.stdin.close()


def _fork(wait):
  """Forks a child that calls `wait` and then ends at once."""
  pid = os.fork()
  if not pid:
    wait()
    os._exit(0)
  return pid


def test_forked_children_do_not_keep_the_lock(tmp_path):
  read, write = os.pipe()
  with workdir.Workdir(tmp_path).acquire(pytest.fail):
    pid = _fork(lambda: os.read(read, 1))
  try:
    assert not _acquire(tmp_path)
  finally:
    os.write(write, b'x')
    os.waitpid(pid, 0)


def test_two_threads_of_a_process_exclude_each_other(tmp_path):
  with workdir.Workdir(tmp_path).acquire(pytest.fail):
    # A backup reads all.
    shutil.copytree(tmp_path, tmp_path.with_name('backup'))
    with futures.ThreadPoolExecutor() as pool:
      error = pool.submit(_acquire, tmp_path).exception()
    assert isinstance(error, workdir.WorkdirError)
    assert f'is in use by process {os.getpid()} on' in str(error)
    command = [sys.executable, '-c', _HOLD, tmp_path]
    other = subprocess.run(command, capture_output=True, text=True)
    assert f'in use by process {os.getpid()} on' in other.stderr
  assert not _acquire(tmp_path)


# -- links ------------------------------------------------------------------


_PATHS = """
run.lock metrics.jsonl versions.jsonl actors.sock any
checkpoints replay checkpoints/7 replay/7/tables.tfrecord
reverb reverb/.restored reverb/server.log tensorboard/events
profile/plugins hosts hosts/1 hosts/1/replay
"""


@pytest.mark.parametrize('name', _PATHS.split())
def test_links_inside_are_refused(tmp_path, name):
  mine = tmp_path / 'mine'
  mine.mkdir()
  (mine / '1').mkdir()
  path = tmp_path / 'run' / name
  path.parent.mkdir(parents=True)
  path.symlink_to(mine)
  (tmp_path / 'link').symlink_to(tmp_path / 'run')
  runs = [workdir.Workdir(tmp_path / 'link')]
  if name.startswith('hosts'):
    runs.append(runs[0].of_host(1))
  for run in runs:
    with pytest.raises(workdir.WorkdirError, match=f'{name} is a link, so'):
      run.acquire(pytest.fail)
  assert [p.name for p in mine.iterdir()] == ['1']
  path.unlink()
  for run in runs:
    run.acquire(pytest.fail).close()
  assert (tmp_path / 'run/run.lock').exists()


def test_links_of_a_killed_reverb_server_are_no_obstacle(tmp_path):
  (tmp_path / 'reverb/.restored').mkdir(parents=True)
  (tmp_path / 'reverb/.restored/chunks').symlink_to(tmp_path)
  assert not _acquire(tmp_path)


def test_without_locks_the_run_goes_on_and_says_so(tmp_path, monkeypatch):
  def fail(*unused):
    raise OSError(95, 'Operation not supported')

  monkeypatch.setattr(workdir.fcntl, 'flock', fail)
  (sentence,) = _acquire(tmp_path)
  assert 'cannot (Operation not supported); make sure that no' in sentence


def test_folder_that_cannot_be_made_is_refused(tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(workdir.WorkdirError, match='cannot be written to'):
    _acquire(tmp_path / 'file')


# -- configuration and versions ---------------------------------------------


def test_config_comes_back_and_resumes_itself(tmp_path):
  config = _config()
  directory = workdir.Workdir(tmp_path)
  directory.write_config(config)
  saved = directory.read_config()
  assert saved.env.id == config.env.id
  assert saved.env.frame_skip is None
  # Tuples are lists in JSON; that is no change.
  assert saved_config.check_resumable(saved, config) == []
  # An earlier release lacked this; the network need not differ.
  del saved.network.categories
  (change,) = saved_config.check_resumable(saved, config)
  assert change == 'network.categories: None -> auto'


def test_keys_that_earlier_releases_lack_have_values(tmp_path):
  config = _config()
  directory = workdir.Workdir(tmp_path)
  directory.write_config(config)
  saved = json.loads(directory.config_json.read_text())
  del saved['network']['normalize_pixels'], saved['optimizer']['decay_frames']
  del saved['network']['categories'], saved['env']['tasks']
  directory.config_json.write_text(json.dumps(saved))
  old = directory.read_config()
  # Small images had levels.
  (change,) = saved_config.check_resumable(old, config)
  assert change == 'network.categories: on -> auto'
  # What playing a checkpoint needs.
  playing.read_config(directory, ())
  config.network.normalize_pixels = True
  with pytest.raises(workdir.WorkdirError, match='normalize_pixels'):
    saved_config.check_resumable(old, config)
  # An agent of the user's.
  del saved['optimizer']
  directory.config_json.write_text(json.dumps(saved))
  assert 'optimizer' not in directory.read_config()


def test_specs_come_back(tmp_path):
  directory = workdir.Workdir(tmp_path)
  directory.write_env_spec(_SPEC)
  assert directory.read_env_spec() == _SPEC


@pytest.mark.parametrize('data', [b'{}', b'[1]', b'{"action": {"shape": 1}}'])
def test_specs_that_are_damaged_or_missing_are_refused(tmp_path, data):
  directory = workdir.Workdir(tmp_path)
  with pytest.raises(workdir.WorkdirError, match='has no env_spec'):
    directory.read_env_spec()
  directory.env_spec_json.write_bytes(data)
  with pytest.raises(workdir.WorkdirError, match='is damaged'):
    directory.read_env_spec()


def test_a_missing_config_is_refused(tmp_path):
  with pytest.raises(workdir.WorkdirError, match='holds no run'):
    workdir.Workdir(tmp_path).read_config(base_config.SAVED)


_SAVED = json.dumps(_config().to_dict())


@pytest.mark.parametrize(
  'text',
  [
    '',
    'null',
    '{}',
    '[1]',
    '{"env": 5}',
    '{"env": {"id": 1}}',
    '{"seed": ',
    '\udc89',
    '[' * 10**6,
    '{"a":' * 900 + '1' + '}' * 900,
    '{"a.b": 1}',
    '{"__class__": 1}',
    json.dumps(json.loads(_SAVED) | {'free': {'more': {'__init__': 1}}}),
    json.dumps(json.loads(_SAVED) | {'target_return': 10**400}),
    _SAVED.replace('"frame_stack": 1', '"frame_stack": 1e9'),
    _SAVED.replace('"frame_stack": 1', '"frame_stack": 1000000000'),
    _SAVED.replace('"unroll_length": 20', '"unroll_length": 10000000'),
    _SAVED.replace('[64, 64]', str([64] * 10**4)),
    _SAVED.replace('"seed": 1', '"seed": NaN'),
    _SAVED.replace('"seed": 1', '"seed": {"x": 1}'),
    json.dumps({**json.loads(_SAVED), 'network': None}),
    json.dumps({**json.loads(_SAVED), 'env': []}),
  ],
)
def test_a_config_that_no_run_wrote_is_refused(tmp_path, text):
  path = tmp_path / 'config.json'
  path.write_bytes(text.encode(errors='surrogateescape'))
  with pytest.raises(workdir.WorkdirError, match=r'config\.json is damaged'):
    workdir.Workdir(tmp_path).read_config(base_config.SAVED)


def test_a_config_of_another_machine_or_an_earlier_release_is_read(tmp_path):
  config = json.loads(_SAVED)
  config['env']['thread_affinity_offset'] = 9999
  del config['asynchronous'], config['network']['layer_norm']
  (tmp_path / 'config.json').write_text(json.dumps(config))
  saved = workdir.Workdir(tmp_path).read_config()
  assert saved.env.thread_affinity_offset == 9999


def test_the_versions_of_every_start_are_noted(tmp_path, monkeypatch):
  monkeypatch.setattr(workdir, '_PACKAGES', ('jax', 'seedrl-jax-that-is-none'))
  for _ in range(2):
    workdir.Workdir(tmp_path).write_config(_config())
  lines = (tmp_path / 'versions.jsonl').read_text().splitlines()
  first, second = map(json.loads, lines)
  assert first['jax'] == second['jax'] == jax.__version__
  assert first['seedrl-jax-that-is-none'] is None
  assert {'time', 'commit', 'python'} <= first.keys()


def _git(folder, *arguments):
  who = ('-c', 'user.name=a', '-c', 'user.email=a@example.com')
  subprocess.run(
    ['git', *who, *arguments], cwd=folder, check=True, capture_output=True
  )


def test_commit_says_whether_files_were_changed(tmp_path, monkeypatch):
  _git(tmp_path, 'init')
  (tmp_path / 'file').write_text('a')
  assert workdir._commit(tmp_path) is None
  _git(tmp_path, 'add', 'file')
  _git(tmp_path, 'commit', '-m', 'message')
  commit = workdir._commit(tmp_path)
  assert commit is not None and len(commit) == 40
  (tmp_path / 'file').write_text('b')
  assert workdir._commit(tmp_path) == commit + '-dirty'
  (tmp_path / 'inner').mkdir()
  assert workdir._commit(tmp_path / 'inner') is None
  monkeypatch.setenv('PATH', os.devnull)
  assert workdir._commit(tmp_path) is None
