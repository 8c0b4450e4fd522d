"""Tests for launch/sweep.py as a program, and for the job array in its page."""

import json
import os
import pathlib
import re
import select
import shlex
import signal
import subprocess

import pytest

from tests import runs
from tests.launch import stand_ins
from tests.patience import wait_until

_RATES = '--set=optimizer.learning_rate=1e-3,3e-4'
_SEED = 'optimizer.learning_rate=0.001,seed='


def _commands(*flags: str) -> list[list[str]]:
  result = runs.call('sweep', '--dry_run', *flags)
  assert result.returncode == 0, result.stderr
  return [shlex.split(line)[2:] for line in result.stdout.splitlines()]


def test_dry_run_prints_commands_that_train_takes(tmp_path):
  flags = (f'--workdir={tmp_path}', '--config=vtrace_catch', '--seeds=2')
  commands = _commands(*flags, _RATES, '--config.deterministic')
  assert len(commands) == 4
  assert commands[1] == [
    *('--config=vtrace_catch', '--config.deterministic=True'),
    *('--config.optimizer.learning_rate=0.001', '--config.seed=2'),
    f'--workdir={tmp_path}/{_SEED}2',
  ]
  stand_ins.check_flags('launch/train.py', *commands[1])
  assert not list(tmp_path.iterdir())


def test_several_configurations_are_one_sweep(tmp_path):
  flags = (f'--workdir={tmp_path}', '--config', 'vtrace_catch,ppo_cartpole')
  commands = _commands(*flags, '--config.seed=3', '--set=batch_size=8')
  assert commands == [
    [
      f'--config={name}',
      *('--config.batch_size=8', '--config.seed=3'),
      f'--workdir={tmp_path}/config={name},batch_size=8,seed=3',
    ]
    for name in ('vtrace_catch', 'ppo_cartpole')
  ]


@pytest.mark.parametrize('flag', ['--config.{}=2', '--set={}=2'])
@pytest.mark.parametrize(
  ('first', 'second', 'lacking'),
  [
    ('dyna_q_cartpole', 'ppo_cartpole', 'ppo_cartpole'),
    ('ppo_cartpole', 'dyna_q_cartpole', 'ppo_cartpole'),
  ],
)
def test_a_key_that_one_lacks_is_an_error(
  tmp_path, flag, first, second, lacking
):
  key = flag.format('planning.ratio')
  error = runs.refusal(
    'sweep', f'--workdir={tmp_path}', f'--config={first},{second}', key
  )
  assert lacking in error and '--config.planning.ratio: ' in error
  assert ' has no such key; the nearest is ' in error


def test_a_run_that_fails_is_named_and_the_rest_reported(tmp_path):
  flags = ('--set=env.id=Catch-v0,Nothing-v0', '--parallel=2')
  program = runs.Program(tmp_path, *flags, script='sweep.py')
  code, err = program.end()
  log = tmp_path / 'env.id=Nothing-v0,seed=1/train.log'
  assert (code, err) == (
    1,
    'sweep: 1 of 2 runs failed; the same command tries them again:\n'
    f'  env.id=Nothing-v0,seed=1: exit code 1, see {log}\n',
  )
  assert 'EnvPool has no such environment' in log.read_text()
  text = (tmp_path / 'report/report.md').read_text()
  assert 'Runs: 1, of them finished: 1.' in text
  # One run of an array, which is finished.
  program = runs.Program(tmp_path, *flags, '--index=0', script='sweep.py')
  program.wait_for('The run is finished')
  assert program.end() == (0, '')


@pytest.mark.slow
def test_stopped_or_killed_it_goes_on(tmp_path):
  flags = ('--seeds=2', '--parallel=2')
  folders = [tmp_path / f'seed={seed}' for seed in (1, 2)]
  before = [0.0, 0.0]
  for number in signal.SIGINT, signal.SIGKILL:
    long = '--config.total_env_frames=100000000'
    program = runs.Program(tmp_path, *flags, long, script='sweep.py')
    least = dict(zip(folders, before, strict=True))
    wait_until(
      lambda least=least: all(_frames(f) > b for f, b in least.items()), 0.1
    )
    children = [int((f / 'run.lock').read_text().split()[0]) for f in folders]
    ends = [os.pidfd_open(child) for child in children]
    program.process.send_signal(number)
    code, err = program.end()
    for end in ends:
      # Readable once the child has ended; the time is only against hangs.
      assert select.select([end], [], [], 300)[0]
      os.close(end)
    if number == signal.SIGINT:
      assert code == 1
      assert err == 'sweep: stopped; the same command goes on from here.\n'
      for folder in folders:
        assert runs.summary(folder)['status'] == 'stopped'
        assert runs.steps(folder)
    before = [_frames(folder) for folder in folders]
  enough = f'--config.total_env_frames={max(before) + 4000:.0f}'
  program = runs.Program(tmp_path, *flags, enough, script='sweep.py')
  assert program.end() == (0, '')
  text = (tmp_path / 'report/report.md').read_text()
  assert 'Runs: 2, of them finished: 2.' in text


def _frames(folder: pathlib.Path) -> float:
  """Returns the frames of the last row; 0.0 if there is none."""
  if not (folder / 'metrics.csv').exists():
    return 0.0
  return max(runs.column(folder, 'time/env_frames'), default=0.0)


# Runs the command of --wrap for each index of --array, as Slurm does.
_SBATCH = """#!PYTHON
import os, subprocess, sys

options = dict(argument.split('=', 1) for argument in sys.argv[1:])
first, last = map(int, options['--array'].split('-'))
for i in range(first, last + 1):
  script = '#!/bin/sh\\n' + options['--wrap']
  env = {**os.environ, 'SLURM_ARRAY_TASK_ID': str(i)}
  subprocess.run(['sh', '-c', script], env=env, check=True)
"""
_SEEDRL = """#!PYTHON
import json, sys

print(json.dumps(sys.argv[1:]))
"""


def test_the_documented_job_array_does_each_run_once(tmp_path):
  page = (runs.ROOT / 'docs/reports.md').read_text()
  (command,) = re.findall(r'```bash\n(sbatch .*?)```', page, re.S)
  stand_ins.add_program(tmp_path / 'bin', 'sbatch', _SBATCH)
  stand_ins.add_program(tmp_path, '.venv/bin/seedrl', _SEEDRL)
  result = subprocess.run(
    ['bash', '-c', command],
    env={'PATH': f'{tmp_path}/bin:/usr/bin:/bin'},
    cwd=tmp_path,
    capture_output=True,
    text=True,
    check=False,
  )
  assert result.returncode == 0, result.stderr
  calls = [json.loads(line) for line in result.stdout.splitlines()]
  assert {call.pop(0) for call in calls} == {'sweep'}
  indices = [call.pop() for call in calls]
  assert indices == [f'--index={i}' for i in range(len(_commands(*calls[0])))]
