"""Tests for launch/skypilot.yaml: its keys, and its script with stand-ins."""

import json
import os
import pathlib
import shutil
import subprocess

import pytest
import yaml

from tests.launch import stand_ins

_TASK = yaml.safe_load((stand_ins.ROOT / 'launch/skypilot.yaml').read_text())

# Records its arguments and saves, with what was there before.
_TRAIN = """#!PYTHON
import json, os, pathlib, sys

folder = pathlib.Path(sys.argv[3].removeprefix('--workdir='))
(folder / 'seen').write_text(' '.join(sorted(os.listdir(folder))))
(folder / '5').mkdir(exist_ok=True)
for name in ('5/a', 'run.lock', '6.tmp'):
  (folder / name).write_text(name)
print(json.dumps(sys.argv[1:]))
sys.exit(int(os.environ['FAKE_STATUS']))
"""


def _run(
  folder: pathlib.Path, status: int = 0, **env: str
) -> subprocess.CompletedProcess[str]:
  """Runs the task's script in a clone, with a folder for the bucket."""
  stand_ins.add_program(folder / 'clone', '.venv/bin/python', _TRAIN)
  script = _TASK['run'].replace('/bucket', str(folder / 'bucket'))
  return subprocess.run(
    ['bash', '-e', '-c', script],
    cwd=folder / 'clone',
    env={**os.environ, **_TASK['envs'], 'FAKE_STATUS': str(status), **env},
    capture_output=True,
    text=True,
    check=False,
  )


def test_keys_are_skypilots():
  assert set(_TASK) == {
    *('name', 'resources', 'envs', 'workdir', 'file_mounts', 'setup', 'run'),
  }
  resources = _TASK['resources']
  assert set(resources) == {'accelerators', 'cpus', 'disk_size'}
  assert all(count == 1 for count in resources['accelerators'].values())
  assert all(isinstance(value, str) for value in _TASK['envs'].values())
  bucket = _TASK['file_mounts']['/bucket']
  assert set(bucket) == {'name', 'mode'} and bucket['mode'] == 'MOUNT'
  assert _TASK['workdir'] == '.'


def test_scripts_call_what_there_is():
  for script in (_TASK['setup'], _TASK['run']):
    subprocess.run(['bash', '-n', '-c', script], check=True)
  stand_ins.check_flags(
    'launch/train.py', f'--config={_TASK["envs"]["CONFIG"]}', '--workdir=w'
  )


@pytest.mark.skipif(not shutil.which('rsync'), reason='needs rsync')
def test_the_bucket_has_a_copy_to_resume_from(tmp_path: pathlib.Path):
  first = _run(tmp_path, FLAGS='--a=1 --b=2', RUN='r')
  assert first.returncode == 0, first.stderr
  assert json.loads(first.stdout)[1:] == [
    *('--config=vtrace_atari_deep', '--workdir=runs/r', '--a=1', '--b=2'),
  ]
  bucket = tmp_path / 'bucket/r'
  assert sorted(os.listdir(bucket)) == ['5', 'seen']
  # Another machine; what the run deletes there is deleted in the bucket.
  shutil.rmtree(tmp_path / 'clone')
  (bucket / 'old').touch()
  second = _run(tmp_path, status=3, RUN='r')
  assert second.returncode == 3
  assert (bucket / 'seen').read_text() == '5 old seen'
