"""Runs workers and the shards of a parameter server as processes."""

import os
import signal

import pytest

from tests import runs
from tests.workers import shards


@pytest.fixture(name='start')
def start_fixture(tmp_path):
  """Returns a function that starts an endless run."""

  def start(**environment: str) -> runs.Program:
    return runs.Program(
      tmp_path / 'run',
      '--config.asynchronous.share=server',
      '--config.asynchronous.shards=2',
      # A process that starts on a busy machine may wait for its disk.
      '--config.asynchronous.patience=5',
      '--config.replay.min_size=100',
      '--config.total_env_frames=1000000000',
      script='train_async.py',
      config='dqn_cartpole',
      **environment,
    )

  return start


def _child(program: runs.Program, kind: str, index: int) -> int:
  """Returns the process of a worker or shard."""
  (first,) = runs.children(program.process.pid)
  (pid,) = (
    pid
    for pid in runs.children(first)
    if shards.child_info(pid).get(kind) == index
  )
  return pid


@pytest.mark.slow
def test_training_survives_the_death_of_shards_and_workers(start, tmp_path):
  temporary = tmp_path / 'tmp'
  temporary.mkdir()
  program = start(TMPDIR=str(temporary))
  updates = program.wait_for_updates(20)
  row = shards.board_row(_child(program, 'worker', 1))
  for kind in 'shard', 'worker':
    os.kill(_child(program, kind, 1), signal.SIGKILL)
    program.wait_for(f'{kind.title()} 1 has died; it is started again.')
    num_applied = row.staleness.sum()
    updates = program.wait_for_updates(updates + 50)
  # The new worker contributes.
  while row.staleness.sum() < num_applied + 20:
    program.wait_for(' updates')
  # The first shard counts the run's updates.
  os.kill(_child(program, 'shard', 0), signal.SIGTERM)
  program.wait_for('Shard 0 has died; it is started again.')
  program.wait_for_updates(updates + 50)
  program.process.send_signal(signal.SIGTERM)
  code, err = program.end()
  assert code == 0, err
  counted = runs.column(tmp_path / 'run', 'time/updates')
  assert counted == sorted(counted)
  assert runs.steps(tmp_path / 'run')[-1] >= counted[-1]
  # Nothing but logs is left.
  assert not [path for path in temporary.rglob('*') if path.is_socket()]
  left = (tmp_path / 'run/shards').iterdir()
  assert {path.name for path in left} == {'0.log', '1.log'}


@pytest.mark.parametrize(
  ('kind', 'index'),
  [('shard', 1), pytest.param('worker', 1, marks=pytest.mark.slow)],
)
def test_a_process_that_hangs_ends_the_run(kind, index, start):
  program = start()
  program.wait_for_updates(20)
  os.kill(_child(program, kind, index), signal.SIGSTOP)
  code, error = program.end()
  assert code == 1
  assert f'{kind.title()} {index} has hung: it has used no' in error
  assert error.count('\n') == 1
