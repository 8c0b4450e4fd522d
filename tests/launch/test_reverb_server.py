"""Tests for launch/reverb_server.py as a program."""

import re
import signal
import subprocess
import sys

import pytest

from seedrl_jax.launch import reverb_server
from seedrl_jax.replay import base as replay
from seedrl_jax.replay.reverb.client import connection
from tests import runs


@pytest.fixture(scope='module', name='python_flag')
def python_flag_fixture(server_python: str) -> str:
  return f'--reverb_python={server_python}'


def test_check_reports_what_there_is(python_flag):
  result = runs.call('reverb_server', '--check', python_flag)
  assert result.returncode == 0, result.stderr
  lines = result.stdout.splitlines()
  assert lines[0].startswith("the server's Python: ")
  assert lines[1].startswith('server: started and answered in ')


def test_serves_until_a_signal(python_flag, tmp_path):
  program = subprocess.Popen(
    [
      *(sys.executable, runs.ROOT / 'launch/reverb_server.py', python_flag),
      f'--checkpoint_dir={tmp_path}',
    ],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  with program:
    line = program.stdout.readline()
    port = int(re.search(r'serving at port (\d+), empty', line)[1])
    address = f'127.0.0.1:{port}'
    assert connection.answers(address, timeout=60)
    program.send_signal(signal.SIGTERM)
    err = program.stderr.read()
  assert program.returncode == 0, err
  assert f'--dport {port}' in err
  assert not connection.answers(address, timeout=0.1)


class _Server:
  """Has three checkpoints, of which one can be read."""

  def __init__(self):
    self.started: list[str | None] = []

  def checkpoints(self) -> list[str]:
    return ['c', 'b', 'a']

  def start(self, restore: str | None = None) -> None:
    self.started.append(restore)
    if restore != 'b':
      raise replay.CheckpointError(f'{restore} is damaged')


def test_goes_on_from_the_newest_checkpoint_that_can_be_read(caplog):
  running = _Server()
  assert reverb_server._start(running) == 'from b'
  assert running.started == ['c', 'b']
  assert 'c is damaged' in caplog.text
