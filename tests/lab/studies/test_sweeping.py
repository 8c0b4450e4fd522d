"""Tests for seedrl_jax/lab/studies/sweeping.py, with a stand-in."""

import io
import os
import select
import signal
import subprocess
import sys
import threading

import pytest

from seedrl_jax.configs import vtrace_catch
from seedrl_jax.lab import launching
from seedrl_jax.lab.studies import sweeping
from seedrl_jax.runtime import progress, workdir
from tests import runs
from tests.lab.studies import study_runs

# Ends as its second argument says; 'wait' tells its process and waits.
_PROGRAM = """
import json, os, pathlib, signal, sys

folder, how = pathlib.Path(sys.argv[1]), sys.argv[2]
print('hello', sorted(os.sched_getaffinity(0)), flush=True)
if how == 'wait':
  signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
  with open(folder.parent / 'started', 'w') as started:
    print(os.getpid(), file=started)
  signal.sigwait({signal.SIGTERM})
  (folder / 'saved').touch()
elif how == 'fail':
  sys.exit(3)
elif how == 'finish':
  summary = {'status': 'finished', 'env_frames': 1000, 'mean_return_100': 0.5}
  (folder / 'summary.json').write_text(json.dumps(summary))
"""


@pytest.fixture(autouse=True)
def launch_fixture(tmp_path, monkeypatch):
  monkeypatch.setattr(launching, 'LAUNCH', tmp_path)


def _trial(folder, name: str, how: str) -> sweeping.Trial:
  config = vtrace_catch.get_config()
  config.total_env_frames = study_runs.TOTAL
  path = folder / name
  arguments = [str(path), how]
  return sweeping.Trial(workdir.Workdir(path), config, 'program', arguments)


def test_an_asynchronous_run_is_in_lock_step(tmp_path):
  path = study_runs.write(tmp_path / 'run', [1.0])
  folder = workdir.Workdir(path)
  config = folder.read_config()
  config.deterministic = not config.deterministic
  sweeping.Trial(folder, config, 'train_async', []).check()
  with pytest.raises(ValueError, match='deterministic'):
    sweeping.Trial(folder, config, 'train', []).check()


def _sweep(
  folder, *hows: str, parallel=2
) -> tuple[sweeping.Sweep, io.StringIO]:
  (folder / 'program.py').write_text(_PROGRAM)
  trials = [_trial(folder, f'{how}{i}', how) for i, how in enumerate(hows)]
  out = io.StringIO()
  line = progress.ProgressLine(out)
  return sweeping.Sweep(trials, parallel, line), out


def test_grid_is_the_product_with_seeds_fastest():
  sets = ['a.b=1e-3,3e-4', 'c=(1,2),(3,)']
  grid = [[*values.values()] for values in sweeping.grid(sets, range(1, 3))]
  assert grid == [
    [value, shape, seed]
    for value in ('1e-3', '3e-4')
    for shape in ('(1,2)', '(3,)')
    for seed in ('1', '2')
  ]
  assert [*sweeping.grid([], [5])] == [{'seed': '5'}]


@pytest.mark.parametrize(
  ('sets', 'message'),
  [
    (['a'], '--set=a: write it as --set=KEY=VALUE,VALUE.'),
    (['=1'], '--set==1: write it as'),
    (['a=1,'], '--set=a=1,: write it as'),
    (['a=1', 'a=2'], 'name each key once, and give seeds by --seeds.'),
    (['seed=1,2'], 'name each key once, and give seeds by --seeds.'),
  ],
)
def test_wrong_values_are_refused(sets, message):
  with pytest.raises(ValueError, match='--set') as e:
    list(sweeping.grid(sets, [1]))
  assert message in str(e.value)


def test_folders_are_named_from_what_varies():
  config = vtrace_catch.get_config()
  runs.set_keys(config, env__id='ALE/Pong v5', network__hidden_sizes=(8,))
  keys = ('env.id', 'network.hidden_sizes', 'seed')
  name = sweeping.folder_name(config, keys)
  assert name == 'env.id=ALE_Pong_v5,network.hidden_sizes=(8,),seed=1'


def test_processors_are_shared_out():
  assert sweeping.shares([0, 1, 5, 7], 3) == ['0', '1', '5,7']
  assert sweeping.shares([2, 3], 1) == ['2,3']
  assert sweeping.shares([2, 3], 4) == ['2', '2', '3', '3']


def test_frames_are_of_the_last_whole_row(tmp_path):
  trial = _trial(tmp_path, 'a', '')
  assert trial.frames() == 0
  study_runs.write(tmp_path / 'a', [1.0])
  path = tmp_path / 'a/metrics.csv'
  assert trial.frames() == study_runs.TOTAL
  row = path.read_text().splitlines()[1]
  # More than is read.
  path.write_text(path.read_text() + f'{row}\n' * 5000 + '2,7777')
  assert trial.frames() == study_runs.TOTAL


def test_a_folder_of_another_configuration_is_refused(tmp_path):
  study_runs.write(tmp_path / 'a', [1.0], log__every_seconds=9.0)
  trial = _trial(tmp_path, 'a', '')
  trial.check()
  _trial(tmp_path, 'b', '').check()
  trial.config.unroll_length = 7
  with pytest.raises(ValueError, match=r'another .* \(unroll_length: 9 -> 7\)'):
    trial.check()


def test_others_go_on_after_a_failure_and_finished_ones_are_skipped(tmp_path):
  sweep, out = _sweep(tmp_path, 'fail', 'finish', 'end', 'finish', parallel=1)
  sweep.run()
  assert sweep.failed == {
    'fail0': f'exit code 3, see {tmp_path}/fail0/train.log',
    'end2': f'stopped before its end, see {tmp_path}/end2/train.log',
  }
  lines = out.getvalue().splitlines()
  assert 'finish1: finished with return 0.5 (eval -)' in lines
  assert lines[-1] == '2/4 runs finished | 2 failed'
  logs = [tmp_path / name / 'train.log' for name in ('fail0', 'finish1')]
  sweep, _ = _sweep(tmp_path, 'fail', 'finish', 'finish')
  sweep.run()
  assert [log.read_text().count('hello') for log in logs] == [2, 1]
  assert [*sweep.failed] == ['fail0']


def test_each_has_its_share_of_the_processors(tmp_path):
  processors = sorted(os.sched_getaffinity(0))
  sweep, _ = _sweep(tmp_path, 'finish', parallel=1)
  sweep.run()
  log = (tmp_path / 'finish0/train.log').read_text()
  assert log == f'hello {processors}\n'


def test_a_stop_ends_those_that_run_and_starts_no_more(tmp_path):
  os.mkfifo(tmp_path / 'started')
  sweep, _ = _sweep(tmp_path, 'wait', 'finish', parallel=1)
  thread = threading.Thread(target=sweep.run)
  thread.start()
  (tmp_path / 'started').read_text()
  sweep.stop()
  thread.join()
  assert (tmp_path / 'wait0/saved').exists()
  assert not (tmp_path / 'finish1').exists()
  assert sweep.is_stopping and not sweep.failed


_SWEEP = """
import pathlib, sys
from seedrl_jax.lab import launching
from tests.lab.studies import test_sweeping

launching.LAUNCH = pathlib.Path(sys.argv[1])
test_sweeping._sweep(launching.LAUNCH, 'wait')[0].run()
"""


def test_no_child_outlives_a_killed_sweep(tmp_path):
  os.mkfifo(tmp_path / 'started')
  command = [sys.executable, '-c', _SWEEP, str(tmp_path)]
  environment = {**os.environ, 'PYTHONPATH': str(runs.ROOT)}
  with subprocess.Popen(command, env=environment) as sweep:
    child = os.pidfd_open(int((tmp_path / 'started').read_text()))
    sweep.send_signal(signal.SIGKILL)
    # Readable once the child has ended; the time is only against hangs.
    assert select.select([child], [], [], 300)[0]
    os.close(child)
  assert not (tmp_path / 'wait0/saved').exists()
