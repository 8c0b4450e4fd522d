"""Runs workers and the shards of a parameter server as processes."""

import contextlib
import os
import pathlib
import signal
import socket

import pytest

from seedrl_jax.workers import children
from tests import runs

_FLAGS = (
  '--config.asynchronous.share=server',
  '--config.asynchronous.shards=2',
  '--config.replay.min_size=100',
  # A busy machine may take long to start a process.
  '--config.asynchronous.patience=600',
)


def _kill(program: runs.Program, told: str, number: int) -> None:
  """Sends a signal to the first worker's child that was told `told`."""
  (first,) = runs.children(program.process.pid)
  for pid in runs.children(first):
    environment = pathlib.Path(f'/proc/{pid}/environ').read_text().split('\0')
    mine = [x for x in environment if x.startswith(children.VARIABLE)]
    if told in mine[0]:
      os.kill(pid, number)
      return
  raise AssertionError(f'No child was told {told}.')


@pytest.fixture
def start(tmp_path):
  """Returns a function that starts an endless run."""
  with contextlib.ExitStack() as stack:

    def make(**environment: str) -> runs.Program:
      program = runs.Program(
        tmp_path / 'run',
        *_FLAGS,
        '--config.asynchronous.snapshot_seconds=0.5',
        '--config.total_env_frames=1000000000',
        script='train_async.py',
        config='dqn_cartpole',
        **environment,
      )
      stack.callback(program.process.kill)
      return program

    yield make


@pytest.mark.slow
def test_training_survives_the_death_of_shards_and_workers(start, tmp_path):
  temporary = tmp_path / 'tmp'
  temporary.mkdir()
  program = start(TMPDIR=str(temporary))
  updates = program.wait_for_updates(20)
  for told, name in ('"shard": 1,', 'Shard 1'), ('"worker": 1,', 'Worker 1'):
    _kill(program, told, signal.SIGKILL)
    program.wait_for(f'{name} has died; it is started again.')
    updates = program.wait_for_updates(updates + 50)
  # The first shard counts the run's updates.
  _kill(program, '"shard": 0,', signal.SIGTERM)
  program.wait_for('Shard 0 has died; it is started again.')
  program.wait_for_updates(updates + 50)
  program.process.send_signal(signal.SIGTERM)
  code, err = program.end()
  assert code == 0, err
  counted = runs.column(tmp_path / 'run', 'time/updates')
  assert counted == sorted(counted)
  assert runs.steps(tmp_path / 'run')[-1] >= counted[-1]
  # Neither sockets nor the shards' files are left.
  assert not [path for path in temporary.rglob('*') if path.is_socket()]
  left = (tmp_path / 'run/shards').iterdir()
  assert {path.name for path in left} == {'0.log', '1.log'}


@pytest.mark.slow
def test_an_address_in_use_is_one_sentence(tmp_path):
  with socket.create_server(('127.0.0.1', 0)) as taken:
    used = f'127.0.0.1:{taken.getsockname()[1]}'
    told = runs.refusal(
      'train_async',
      f'--workdir={tmp_path}',
      '--config=dqn_cartpole',
      *_FLAGS,
      f"--config.asynchronous.addresses=('unix:{tmp_path}/a','{used}')",
    )
  assert 'shard-1 has ended with exit code 1 before it was ready' in told
  assert f'--config.asynchronous.addresses={used}: cannot listen' in told
