"""Tests workers as processes: deaths, stops and what they refuse."""

import functools
import json
import os
import pathlib
import re
import signal

import pytest

from seedrl_jax.workers import board as board_lib
from seedrl_jax.workers import children
from tests import runs
from tests.workers import shards

# A worker's updates, among its process's figures on the board.
_UPDATES = list(board_lib._FIELDS).index('lag_updates')


def _start(workdir, *flags, config='a2c_cartpole', **environment):
  return runs.Program(
    workdir,
    '--config.env.id=CartPole-v1',
    *flags,
    script='train_async.py',
    config=config,
    **environment,
  )


def _workers(program):
  """Returns the processes of workers 0 and 1."""
  (first,) = runs.children(program.process.pid)
  return first, *runs.children(first)


@pytest.mark.parametrize(
  'share', [pytest.param('hogwild', marks=pytest.mark.slow), 'sync']
)
def test_a_worker_that_dies_is_started_again(share, tmp_path):
  program = _start(
    tmp_path,
    '--config.total_env_frames=1000000',
    f'--config.asynchronous.share={share}',
  )
  program.wait_for_updates(20)
  _, worker = _workers(program)
  row = shards.board_row(worker)
  os.kill(worker, signal.SIGKILL)
  program.wait_for('Worker 1 has died; it is started again')
  # The figures are those of the new process. With 'sync' the first worker
  # applies the gradients of all.
  num_applied = row.staleness.sum() + (20 if share == 'hogwild' else 0)
  while row.figures[_UPDATES] < 20 or row.staleness.sum() < num_applied:
    program.wait_for(' updates')
  program.process.send_signal(signal.SIGTERM)
  assert program.end() == (0, '')
  assert runs.summary(tmp_path)['status'] == 'stopped'


@pytest.mark.parametrize(
  ('share', 'index'),
  [
    pytest.param('hogwild', 1, marks=pytest.mark.slow),
    ('hogwild', 0),
    pytest.param('lock', 1, marks=pytest.mark.slow),
    pytest.param('sync', 0, marks=pytest.mark.slow),
    pytest.param('sync', 1, marks=pytest.mark.slow),
  ],
)
def test_a_worker_that_hangs_ends_the_run(share, index, tmp_path):
  program = _start(
    tmp_path,
    '--config.total_env_frames=1000000',
    f'--config.asynchronous.share={share}',
    # A process that starts on a busy machine may wait for its disk.
    '--config.asynchronous.patience=5',
  )
  program.wait_for_updates(20)
  os.kill(_workers(program)[index], signal.SIGSTOP)
  code, error = program.end()
  assert code == 1
  assert re.fullmatch(
    rf'.*Worker {index} has (hung: it has used no processor time|not answered) '
    'for 5 s; give it longer with --config.asynchronous.patience, or start the '
    'run again to resume from its last checkpoint.\n',
    error,
  )


@pytest.mark.slow
def test_the_first_worker_is_started_again_too(tmp_path):
  program = _start(
    tmp_path,
    '--config.total_env_frames=1000000',
    '--config.checkpoint.every_seconds=0.5',
  )
  program.wait_for_updates(20)
  while not runs.steps(tmp_path):
    program.wait_for(' updates')
  first, second = _workers(program)
  os.kill(first, signal.SIGKILL)
  program.wait_for('Worker 0 has died .signal SIGKILL.; it is started again')
  program.wait_for('Resuming from checkpoint')
  program.wait_for_updates(20)
  # The others have ended with it.
  assert first not in _workers(program) and second not in _workers(program)
  program.process.send_signal(signal.SIGTERM)
  assert program.end() == (0, '')
  assert runs.summary(tmp_path)['status'] == 'stopped'


@pytest.mark.parametrize(
  ('config', 'flags'),
  [
    ('a2c_cartpole', ()),
    pytest.param(
      'dqn_cartpole',
      ('--config.replay.min_size=20',),
      marks=pytest.mark.slow,
    ),
  ],
)
def test_a_stopped_run_goes_on(config, flags, tmp_path):
  start = functools.partial(_start, tmp_path, *flags, config=config)
  program = start('--config.total_env_frames=1000000')
  program.wait_for_updates(20)
  program.process.send_signal(signal.SIGTERM)
  assert program.end()[0] == 0
  first = runs.summary(tmp_path)
  assert first['status'] == 'stopped'
  assert runs.steps(tmp_path)[-1] == first['updates']
  frames = first['env_frames'] + 200
  program = start(f'--config.total_env_frames={frames}')
  program.wait_for('Resuming from checkpoint')
  assert program.end() == (0, '')
  second = runs.summary(tmp_path)
  assert second['status'] == 'finished'
  assert second['updates'] > first['updates']
  returns = runs.column(tmp_path, 'time/env_frames')
  assert returns == sorted(returns)
  assert 'starts empty' not in (tmp_path / 'hosts/1/worker.log').read_text()


def test_a_worker_that_cannot_start_ends_the_run(tmp_path):
  (tmp_path / 'run').mkdir()
  (tmp_path / 'run/hosts').write_text('Here the workers have their folders.')
  program = _start(tmp_path / 'run')
  code, error = program.end()
  assert code == 1
  assert 'Worker 1 cannot be started' in error and error.count('\n') == 1


def test_workers_of_different_configurations_are_refused(tmp_path):
  info = {'worker': 1, 'config': {'seed': 2}, 'replay_address': ''}
  program = _start(tmp_path, **{children.VARIABLE: json.dumps(info)})
  code, error = program.end()
  assert code == 1
  assert '--config' in error and 'one configuration' in error


@pytest.mark.usefixtures('server_python')
def test_a_model_worker_makes_no_more_than_its_part_of_the_updates(tmp_path):
  program = _start(
    tmp_path,
    '--config.asynchronous.model_workers=1',
    '--config.replay.backend=reverb',
    '--config.replay.min_size=100',
    '--config.planning.start_frames=200',
    '--config.unroll_length=1',
    '--config.total_env_frames=1000000',
    config='dyna_q_cartpole',
  )
  program.wait_for_updates(100)
  (server,) = (
    pid
    for pid in _workers(program)[1:]
    if 'server/main.py' in pathlib.Path(f'/proc/{pid}/cmdline').read_text()
  )
  # The first worker has one processor, its server all.
  assert os.sched_getaffinity(server) == os.sched_getaffinity(0)
  share = functools.partial(runs.column, tmp_path, 'asynchronous/model_share')
  while share()[-1] == 0:
    program.wait_for(' updates')
  program.process.send_signal(signal.SIGTERM)
  assert program.end()[0] == 0
  # Of 100 it may be one ahead.
  assert share()[-1] < 0.51


@pytest.mark.parametrize(
  ('flags', 'sentence'),
  [
    (['--config=ppo_cartpole'], 'not one gradient step'),
    (['--config.asynchronous.workers=0'], '--config.asynchronous.workers=0'),
    (['--config.asynchronous.model_workers=1'], 'only dyna_q has a model'),
    (
      ['--config=dyna_q_cartpole', '--config.asynchronous.model_workers=2'],
      'none of 2 workers would act',
    ),
    (
      ['--config=dyna_q_cartpole', '--config.asynchronous.model_workers=1'],
      'take --config.replay.backend=reverb',
    ),
    (['--config.network.normalize_pixels'], 'but no statistics; give False'),
    (['--config.asynchronous.share=none'], '--config.asynchronous.share=none'),
  ],
)
def test_refusals(flags, sentence, tmp_path):
  assert sentence in runs.refusal(
    'train_async', f'--workdir={tmp_path}', *flags
  )
