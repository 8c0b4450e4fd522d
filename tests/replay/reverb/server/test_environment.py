"""Tests for environment.py with a stand-in for uv."""

import os
import pathlib
import platform
import signal
import subprocess
import sys

import pytest
import uv

from seedrl_jax.replay.reverb.server import environment
from tests.patience import wait_until

# Its second argument is --python=…, and the last of `uv venv` the folder.
_UV = """cd "$(dirname "$0")"
echo "$*" >>"calls-$1"
[ ! -e "fail-$1" ] || exit 1
[ ! -e "hang-$1" ] || { touch hung; exec sleep 600; }
[ "$1" = pip ] || { mkdir -p "$3/bin"; ln -s /bin/true "$3/bin/python"; }"""
_ENSURE = """
import sys, uv
from seedrl_jax.replay.reverb.server import environment
uv.find_uv_bin = lambda: sys.argv[1]
print(environment.ensure())
"""


@pytest.fixture(name='uv_path', autouse=True)
def uv_path_fixture(monkeypatch, tmp_path) -> pathlib.Path:
  monkeypatch.setenv('SEEDRL_CACHE', str(tmp_path / 'cache'))
  monkeypatch.delenv(environment.VARIABLE, raising=False)
  path = _script(tmp_path / 'uv', _UV)
  monkeypatch.setattr(uv, 'find_uv_bin', lambda: str(path))
  return path


def _script(path: pathlib.Path, text: str) -> pathlib.Path:
  path.write_text(f'#!/bin/sh\n{text}\n')
  path.chmod(0o755)
  return path


def _start(uv_path: pathlib.Path) -> subprocess.Popen:
  command = [sys.executable, '-c', _ENSURE, uv_path]
  pipe = subprocess.PIPE
  return subprocess.Popen(
    command, stdout=pipe, stderr=pipe, text=True, start_new_session=True
  )


def test_built_once_although_interrupted(uv_path, tmp_path, capfd):
  (tmp_path / 'hang-pip').touch()
  with _start(uv_path) as run:
    wait_until((tmp_path / 'hung').exists)
    os.killpg(run.pid, signal.SIGKILL)
  (tmp_path / 'hang-pip').unlink()
  runs = [_start(uv_path) for _ in range(2)]
  results = [run.communicate() for run in runs]
  python = environment.ensure()
  assert [out for out, _ in results] == [f'{python}\n'] * 2, results
  notices = [err for _, err in results if err]
  assert len(notices) == 1 and '30 s, 250 MB to download, 1 GB' in notices[0]
  assert not capfd.readouterr().err
  calls = (tmp_path / 'calls-pip').read_text().splitlines()
  assert len(calls) == 2 and '--no-deps' in calls[1]
  # Its interpreter was removed.
  pathlib.Path(python).unlink()
  assert environment.ensure() == python and os.path.exists(python)


@pytest.mark.parametrize('step', ['venv', 'pip'])
@pytest.mark.parametrize('version', [(3, 11), (3, 12)])
def test_build_that_fails(tmp_path, monkeypatch, version, step):
  monkeypatch.setattr(sys, 'version_info', version)
  (tmp_path / f'fail-{step}').touch()
  with pytest.raises(environment.EnvironmentUnavailable) as raised:
    environment.ensure()
  # Only this means that there is no Python.
  is_missing = (version, step) == ((3, 12), 'venv')
  assert isinstance(raised.value, environment.NoReverb) == is_missing
  (log,) = (tmp_path / 'cache').glob('*.log')
  sentence = str(raised.value)
  assert sentence.startswith(
    "the Reverb server's environment cannot be built ("
  )
  assert f'{log}' in sentence and '--reverb_python' in sentence
  assert sentence.endswith('or use --config.replay.backend=embedded.')
  this = os.path.realpath(sys.executable)
  base = this if version == (3, 11) else '>=3.9,<3.12'
  assert f'venv --python={base} ' in (tmp_path / 'calls-venv').read_text()


def test_named_interpreters(tmp_path, monkeypatch):
  ready = str(_script(tmp_path / 'ready', 'exit 0'))
  monkeypatch.setenv(environment.VARIABLE, ready)
  assert environment.ensure() == ready and not (tmp_path / 'cache').exists()
  bare = _script(tmp_path / 'bare', 'exit 1')
  assert environment.ensure(str(bare)).startswith(str(tmp_path / 'cache'))
  assert f'venv --python={bare} ' in (tmp_path / 'calls-venv').read_text()
  (tmp_path / 'fail-venv').touch()
  with pytest.raises(environment.EnvironmentUnavailable) as raised:
    environment.ensure('/no/such')
  assert str(raised.value).startswith('--reverb_python=/no/such: the R')


def test_cache_that_cannot_be_written(tmp_path, monkeypatch):
  monkeypatch.setenv('SEEDRL_CACHE', str(tmp_path / 'uv/cache'))
  with pytest.raises(environment.EnvironmentUnavailable, match='SEEDRL_CACHE'):
    environment.ensure()


def test_uv_is_missing(monkeypatch):
  monkeypatch.setitem(sys.modules, 'uv', None)
  with pytest.raises(environment.EnvironmentUnavailable, match='install uv'):
    environment.ensure()


def test_other_platforms(monkeypatch):
  monkeypatch.setattr(platform, 'machine', lambda: 'aarch64')
  with pytest.raises(environment.NoReverb, match='backend=embedded'):
    environment.ensure()
