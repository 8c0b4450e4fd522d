"""Tests for launch/train.py as a program: signals, exit codes, messages."""

import os
import re
import signal
import socket
import subprocess
import sys

import pytest

from tests import runs
from tests.patience import PATIENCE

_LONG = '--config.total_env_frames=100000000'


def _train(workdir, *flags, **kwargs):
  program = runs.Program(workdir, *flags, **kwargs)
  code, err = program.end()
  return code, ''.join(program.lines), err


def test_stops_cleanly_on_signals_and_goes_on(tmp_path):
  before = {'env_frames': 0, 'seconds': 0.0, 'updates': 0}
  for number in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
    program = runs.Program(tmp_path, _LONG)
    if before['updates']:
      program.wait_for(f'Resuming from checkpoint {before["updates"]}:')
    program.wait_for_updates(before['updates'] + 1)
    program.process.send_signal(number)
    assert program.end() == (0, '')
    after = runs.summary(tmp_path)
    assert after['status'] == 'stopped'
    assert runs.steps(tmp_path)[-1] == after['updates']
    assert all(after[name] > value for name, value in before.items())
    before = {name: after[name] for name in before}
    for name in before:
      values = runs.column(tmp_path, runs.COLUMNS[name])
      assert values == sorted(values), name


@pytest.mark.parametrize(
  ('signals', 'code'),
  [('SIGTERM SIGTERM', 0), ('SIGINT', 0), ('SIGINT SIGINT', -signal.SIGINT)],
)
def test_stops_while_it_compiles(tmp_path, signals, code):
  script = '../tests/launch/signalled_train.py'
  program = runs.Program(tmp_path, _LONG, script=script, SIGNALS=signals)
  assert program.end() == (code, '')
  # The second Ctrl-C ends it at once.
  has_ended = code == 0
  assert (tmp_path / 'summary.json').exists() == has_ended
  if has_ended:
    assert runs.summary(tmp_path)['status'] == 'stopped'
  program = runs.Program(tmp_path, '--config.total_env_frames=1000')
  assert program.end() == (0, '')
  start = 'Resuming from' if has_ended else 'There is no'
  assert any(f'{start} checkpoint ' in line for line in program.lines)
  assert runs.summary(tmp_path)['status'] == 'finished'


def test_a_new_run_of_the_default_says_so(tmp_path):
  frames = '--config.total_env_frames=400'
  program = runs.Program(tmp_path, frames, config=None)
  assert program.end() == (0, '')
  assert program.lines[0].startswith('New run of vtrace_cartpole, as ')
  program = runs.Program(tmp_path, frames, config=None)
  assert program.end() == (0, '')
  assert 'New run' not in ''.join(program.lines)


def test_a_start_that_hangs_ends_after_a_signal():
  code = """
import os, signal, threading
from seedrl_jax.launch import train

train._START_SECONDS = 0.0
train.Stop().install()
os.kill(os.getpid(), signal.SIGTERM)
threading.Event().wait()
"""
  ended = subprocess.run(
    [sys.executable, '-c', code],
    env=runs.environment_of({}),
    capture_output=True,
    text=True,
    check=False,
  )
  assert ended.returncode == 1
  assert 'the start did not end within 0 s of the signal' in ended.stderr


def test_a_second_run_is_kept_out_and_nohup_is_respected(tmp_path):
  # As `nohup` does; children inherit it.
  before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
  try:
    program = runs.Program(tmp_path, _LONG, is_forked=False)
  finally:
    signal.signal(signal.SIGHUP, before)
  program.wait_for_updates()
  unfinished = tmp_path / 'checkpoints/5.tmp'
  unfinished.parent.mkdir()
  unfinished.touch()
  program.process.send_signal(signal.SIGHUP)
  code, _, err = _train(tmp_path)
  assert (code, err) == (
    1,
    f'train: --workdir={tmp_path} is in use by process '
    f'{program.process.pid} on {socket.gethostname()}; stop that run, or '
    'choose another folder.\n',
  )
  assert unfinished.exists() and program.process.poll() is None
  program.process.send_signal(signal.SIGTERM)
  assert program.end() == (0, '')


def test_output_that_nobody_reads_does_not_end_the_run(tmp_path):
  # A queue needs no environment for Reverb, either.
  cache = tmp_path / 'cache'
  program = runs.Program(
    tmp_path,
    '--config.total_env_frames=20000',
    omit=['replay.backend'],
    SEEDRL_CACHE=str(cache),
  )
  program.wait_for_updates()
  program.process.stdout.close()
  program.process.stdout = None
  _, err = program.process.communicate(timeout=PATIENCE)
  assert (program.process.returncode, err) == (0, '')
  assert runs.summary(tmp_path)['status'] == 'finished'
  assert runs.steps(tmp_path)
  assert not list(cache.glob('reverb-*'))


def test_kill_and_restart_continues_from_the_last_checkpoint(tmp_path, backend):
  flags = (f'--config.replay.backend={backend}', _LONG)
  often = '--config.checkpoint.every_seconds=0.1'
  program = runs.Program(tmp_path, *flags, often)
  program.wait_for_updates()
  # More than the items in the queue would make up for.
  while not any(step > 10 for step in runs.steps(tmp_path)):
    program.wait_for_updates()
  program.process.kill()
  assert program.end()[0] == -signal.SIGKILL
  assert not (tmp_path / 'summary.json').exists()

  # Less often, so that newer checkpoints do not replace the wanted one.
  seldom = '--config.checkpoint.every_seconds=300'
  restarted = runs.Program(tmp_path, *flags, seldom)
  step = int(restarted.wait_for(r'Resuming from checkpoint (\d+)')[1])
  assert step > 10 and (tmp_path / 'replay' / str(step)).exists()
  # The first report may come before the first update.
  restarted.wait_for_updates(step + 1)
  restarted.process.send_signal(signal.SIGTERM)
  assert restarted.end()[0] == 0
  assert runs.summary(tmp_path)['status'] == 'stopped'
  values = runs.column(tmp_path, 'time/env_frames')
  assert values == sorted(values)
  # The store's counts were restored with its contents: each update took a batch
  # that was inserted before or after.
  inserts = runs.column(tmp_path, 'replay/inserted_unrolls')
  updates = runs.column(tmp_path, 'time/updates')
  assert updates[-1] > step
  assert all(i >= 4 * u for i, u in zip(inserts, updates, strict=True))


@pytest.mark.parametrize(
  ('failure', 'words', 'last'),
  [
    (
      'nan',
      [' of tests.runs:pixels gave a reward of nan, which is not a'],
      'train: Environment ',
    ),
    (
      'raise',
      ['Thread inference-0 failed.', 'Traceback'],
      'The run has failed: OSError: The toy is broken. (',
    ),
  ],
)
def test_failure_is_told_and_the_last_good_checkpoint_stays(
  tmp_path, failure, words, last
):
  code, _, err = _train(
    tmp_path,
    '--config.env.factory=tests.runs:pixels',
    f"--config.env.factory_kwargs={{'bad_after': 60, 'failure': '{failure}'}}",
    '--config.network.torso=mlp',
    '--config.checkpoint.every_seconds=0',
    _LONG,
  )
  assert code == 1
  assert all(word in err for word in words)
  assert err.splitlines()[-1].startswith(last)
  # An error that the user may have caused has no traceback.
  assert (len(err.splitlines()) == 1) == (failure == 'nan')
  assert runs.summary(tmp_path)['status'].startswith('failed: ')
  assert runs.steps(tmp_path)


def test_eight_simulated_devices_and_a_trace(tmp_path):
  code, out, err = _train(
    tmp_path,
    '--config.topology.max_devices=0',
    '--config.topology.inference_to_training=4:4',
    '--config.env.num_envs=8',
    '--config.num_eval_envs=1',
    '--config.total_env_frames=4000',
    '--profile=2',
    is_forked=False,
    XLA_FLAGS='--xla_force_host_platform_device_count=8',
    SEEDRL_TELL_START='1',
  )
  assert code == 0, err
  # What launch/benchmark.py startup times.
  assert re.findall(r'^Ready: (.*)\.$', err, re.M) == [
    *('command line', 'imports', 'plan', 'state', 'store', 'environments'),
    *('learner', 'acting', 'updating', 'first batch', 'first update'),
  ]
  assert '4 cpu devices for inference, 4 for training' in out
  assert 'Trace of 2 updates' in out
  assert list((tmp_path / 'profile').rglob('*.xplane.pb'))
  assert runs.summary(tmp_path)['env_frames'] >= 4000


def test_missing_system_library_is_one_sentence(tmp_path):
  (tmp_path / 'envpool.py').write_text(
    "raise ImportError('libz-9.so.1: cannot open shared object file')\n"
  )
  path = os.pathsep.join([str(tmp_path), str(runs.ROOT)])
  code, _, err = _train(tmp_path / 'run', is_forked=False, PYTHONPATH=path)
  assert (code, len(err.splitlines())) == (1, 1)
  assert err.startswith('train: EnvPool cannot be imported: libz-9.so.1: ')
