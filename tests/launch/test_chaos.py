"""Tests that runs end correctly though every process is killed."""

import json
import pathlib
import statistics
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests import runs
from tests.launch import chaos

_UNROLL = 5
# Unrolls that losing the queue may drop or repeat: those in it, and those of
# batches taken from it.
_LOST_UNROLLS = 16 + 3 * 8
# For the long run.
_SECONDS_BETWEEN = 5.0
_FAULTS_BEFORE = 60

# Make the environment before a run would.
pytestmark = pytest.mark.usefixtures('server_python')


def _run(root: pathlib.Path, *flags: str) -> Iterator[chaos.Chaos]:
  started = chaos.Chaos(root, 7, *flags)
  yield started
  started.kill_all()


@pytest.fixture
def run(tmp_path: pathlib.Path) -> Iterator[chaos.Chaos]:
  often = (
    '--config.checkpoint.every_seconds=2',
    '--config.log.every_seconds=0.2',
  )
  yield from _run(tmp_path, *often)


@pytest.fixture
def long_run(tmp_path: pathlib.Path) -> Iterator[chaos.Chaos]:
  yield from _run(tmp_path, '--config.checkpoint.every_seconds=20')


def _go_on(run: chaos.Chaos, updates: int) -> None:
  """Waits for so many more updates."""
  before = run.wait_for_updates()
  while run.wait_for_updates() < before + updates:
    pass


def _start_again(run: chaos.Chaos, frames: Callable[[int], int]) -> int:
  """Kills the learner once there is a checkpoint; see `kill_learner`."""
  while not runs.steps(run.workdir):
    run.wait_for_updates()
  total = run.kill_learner(frames)
  run.learner.wait_for('Resuming from checkpoint')
  return total


def _check(run: chaos.Chaos, total: int) -> None:
  """Checks a finished run's results and leftovers."""
  summary = run.summary()
  assert summary['status'] == 'finished'
  # The last inference batch may add several.
  assert total <= summary['env_frames'] < total + 1000
  # A random policy gets 5.
  assert summary['mean_return_100'] > 6
  tally = run.tally()
  losses = run.kills['reverb'] + run.kills['learner']
  assert tally.broken == 0
  assert tally.missing <= losses * _LOST_UNROLLS * _UNROLL
  assert tally.repeated <= losses * _LOST_UNROLLS * _UNROLL
  run.check_nothing_is_left()


def test_training_survives_the_death_of_each_part(run: chaos.Chaos):
  _go_on(run, 20)
  run.kill_actor()
  _go_on(run, 20)
  run.kill_reverb()
  _go_on(run, 20)
  run.kill_actor()
  _start_again(run, lambda _: chaos.ENDLESS)
  _go_on(run, 20)
  run.kill_reverb()
  _go_on(run, 20)
  run.kill_actor()
  # Enough frames that it does not end too soon.
  total = _start_again(run, lambda frames: frames + 8000)
  words = run.finish()
  assert 'the training has ended' in ''.join(words)
  _check(run, total)


@pytest.mark.slow
def test_ten_minutes_of_killing(long_run: chaos.Chaos):
  """Kills an actor every five seconds, all else once or twice."""
  run = long_run
  run.wait_for_updates()
  others = {
    _FAULTS_BEFORE // 2: run.kill_reverb,
    _FAULTS_BEFORE: lambda: _start_again(run, lambda _: chaos.ENDLESS),
    _FAULTS_BEFORE * 3 // 2: run.kill_reverb,
  }
  for count in range(2 * _FAULTS_BEFORE):
    _wait(run)
    others.get(count, lambda: None)()
    run.kill_actor()
    run.sample()
  # However fast training is now, the second half was as long as the first.
  total = _start_again(run, lambda frames: frames + 8000)
  run.finish()
  _check(run, total)
  figures = {
    'kills': run.kills,
    'summary': run.summary(),
    'tally': run.tally()._asdict(),
    'samples': [s.__dict__ for s in run.samples],
  }
  print(json.dumps(figures))
  for start in 0, 1:
    samples = [s for s in run.samples if s.start == start]
    # By then allocators are warm.
    samples = samples[len(samples) // 5 :]
    early, late = samples[: len(samples) // 3], samples[-(len(samples) // 3) :]
    for name in 'megabytes', 'files', 'threads':
      before, after = (
        statistics.median(getattr(s, name) for s in part)
        for part in (early, late)
      )
      assert after < 1.1 * before, (name, before, after)


def _wait(run: chaos.Chaos) -> None:
  """Waits until the next fault is due."""
  with pytest.raises(subprocess.TimeoutExpired):
    run.learner.popen.wait(_SECONDS_BETWEEN)
