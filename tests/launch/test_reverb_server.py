"""Tests for launch/reverb_server.py as a program."""

import pathlib
import re
import signal
import subprocess
import sys

import grpc
import pytest

from seedrl_jax.replay.reverb.proto import reverb_pb2
from seedrl_jax.replay.reverb.server import server
from tests import runs


@pytest.fixture(scope='module', name='python_flag')
def python_flag_fixture(server_python: str) -> str:
  return f'--reverb_python={server_python}'


def _serve(*flags: str) -> tuple[subprocess.Popen, str]:
  """Starts the program; returns it and its line when it serves."""
  program = subprocess.Popen(
    [sys.executable, runs.ROOT / 'launch/reverb_server.py', *flags],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  return program, program.stdout.readline()


def test_check_reports_what_there_is(python_flag):
  result = runs.call('reverb_server', '--check', python_flag)
  assert result.returncode == 0, result.stderr
  lines = result.stdout.splitlines()
  assert [line.partition(':')[0] for line in lines] == [
    'interpreter',
    'environment',
    'versions',
    'server',
  ]
  assert 'dm-reverb 0.14.0' in lines[2]
  assert 'started and answered in' in lines[3]


@pytest.mark.parametrize('flags', [['--check'], []])
def test_bad_interpreter_is_one_sentence(flags):
  refusal = runs.refusal('reverb_server', '--reverb_python=/no/such', *flags)
  assert refusal.startswith('reverb_server: --reverb_python=/no/such: ')


@pytest.mark.parametrize(
  'number', [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
)
def test_serves_until_a_signal(python_flag, number):
  program, line = _serve(python_flag)
  with program:
    port = int(re.search(r'serving at port (\d+), empty', line)[1])
    address = f'localhost:{port}'
    assert server.answers(address, timeout=60)
    program.send_signal(number)
    err = program.stderr.read()
  assert program.returncode == 0, err
  assert f'--dport {port}' in err
  assert not server.answers(address, timeout=0.1)


def test_port_in_use(python_flag):
  first, line = _serve(python_flag)
  with first:
    port = re.search(r'port (\d+)', line)[1]
    second, _ = _serve(python_flag, f'--port={port}')
    with second:
      err = second.stderr.read()
    first.terminate()
  assert second.returncode == 1
  assert f'reverb_server: Port {port} is in use' in err


def test_goes_on_from_the_newest_checkpoint_that_can_be_read(
  python_flag, tmp_path
):
  folder = f'--checkpoint_dir={tmp_path}'
  names = []
  for _ in range(2):
    program, line = _serve(python_flag, folder)
    with program:
      port = re.search(r'port (\d+)', line)[1]
      names.append(_checkpoint(f'localhost:{port}'))
      program.terminate()
  (tmp_path / '.server' / names[1] / 'chunks.tfrecord').unlink()
  program, line = _serve(python_flag, folder)
  with program:
    program.terminate()
    err = program.stderr.read()
  assert f'from {tmp_path / names[0]};' in line
  assert f'{tmp_path / names[1]} is damaged' in err


def _checkpoint(address: str) -> str:
  """Makes a server write a checkpoint; returns its folder's name."""
  with grpc.insecure_channel(address) as channel:
    call = channel.unary_unary(
      '/deepmind.reverb.ReverbService/Checkpoint',
      None,
      reverb_pb2.CheckpointResponse.FromString,
    )
    return pathlib.Path(call(b'', timeout=60).checkpoint_path).name
