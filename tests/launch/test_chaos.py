"""A run ends correctly though its actors, Reverb and learner are killed.

Its environments, `tests.actors.counted`, account for every step.
"""

import contextlib
import os
import pathlib
import random
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests import runs
from tests.actors import counted, processes

_UNROLL = 5
# Unrolls that losing the queue may drop or repeat: those in it, and those of
# batches taken from it.
_LOST_UNROLLS = 16 + 3 * 8
_NUM_ACTORS = 4
# An environment variable that marks all processes of a run.
_MARK = 'SEEDRL_TEST_CHAOS'
_SERVER = 'reverb/server/main.py'
# More frames than any run reaches.
_ENDLESS = 10**9
# Seconds between two checks of processes, and for the last of them to end.
_LOOK, _END_SECONDS = 0.05, 120.0
# What a run leaves in its work directory.
_KEPT = {
  'checkpoints',
  'config.json',
  'env_spec.json',
  'metrics.csv',
  'replay',
  'reverb',
  'run.lock',
  'summary.json',
  'versions.jsonl',
}


class Chaos:
  """Processes of one run, and methods that harm them."""

  def __init__(self, root: pathlib.Path, seed: int, *flags: str):
    """Starts a learner with `flags` and its actors in `root`, an empty folder.

    `seed` chooses which actors are killed.
    """
    self.workdir = root / 'run'
    self.record = root / 'record'
    self.temporary = root / 'tmp'
    self.temporary.mkdir()
    self.kills = dict.fromkeys(('actor', 'reverb', 'learner'), 0)
    self._root = root
    self._flags = flags
    self._random = random.Random(seed)
    self._variables = {_MARK: str(root), 'TMPDIR': str(self.temporary)}
    self.learner = self._start_learner(_ENDLESS)
    self.actors = [self._start_actor() for _ in range(_NUM_ACTORS)]

  def _start_learner(self, frames: int) -> processes.Process:
    return processes.learner(
      self.workdir,
      self.record,
      f'--config.actors.max_envs={4 * _NUM_ACTORS}',
      '--config.replay.backend=reverb',
      # A busy machine may delay any of them.
      '--config.replay.patience=600',
      '--config.actors.timeout=600',
      f'--config.total_env_frames={frames}',
      *self._flags,
      **self._variables,
    )

  def _start_actor(self) -> processes.Process:
    address = f'unix:{self.workdir}/actors.sock'
    return processes.actor(address, **self._variables)

  @property
  def frames(self) -> int:
    """Frames by the learner's last report."""
    return self._last('time/env_frames')

  def wait_for_updates(self) -> int:
    """Waits for a report; returns its number of updates."""
    self.learner.wait_for(' updates')
    return self._last('time/updates')

  def _last(self, name: str) -> int:
    # The first row comes after its line.
    return int([0.0, *runs.column(self.workdir, name)][-1])

  def kill_actor(self) -> None:
    """Kills a random actor and starts another."""
    index = self._random.randrange(_NUM_ACTORS)
    victim = self.actors[index]
    assert victim.end(signal.SIGKILL) == -signal.SIGKILL, victim.text
    self.actors[index] = self._start_actor()
    self.kills['actor'] += 1

  def kill_reverb(self) -> None:
    """Kills the server, which the learner replaces."""
    (server,) = (
      pid
      for pid in self._pids()
      if _SERVER in _read(pid, 'cmdline')
      and _parent(pid) == self.learner.popen.pid
    )
    os.kill(server, signal.SIGKILL)
    self.kills['reverb'] += 1

  def kill_learner(self, frames: Callable[[int], int]) -> int:
    """Kills the learner and restarts it in its work directory.

    `frames` maps its frames so far to those to end at, which are returned.
    """
    assert self.learner.end(signal.SIGKILL) == -signal.SIGKILL
    self.kills['learner'] += 1
    total = frames(self.frames)
    self.learner = self._start_learner(total)
    return total

  def finish(self) -> list[str]:
    """Waits for the training's end; returns the actors' last lines.

    Actors without a learner at that moment are asked to end.
    """
    code = self.learner.end()
    assert code == 0, self.learner.text
    # At least one was stepping until then and learns of the end.
    while all(actor.is_alive for actor in self.actors):
      _wait(self.actors[0])
    for actor in self.actors:
      while actor.is_alive and not _is_looking(actor):
        _wait(actor)
      if actor.is_alive:
        actor.popen.send_signal(signal.SIGTERM)
      assert actor.end() == 0, actor.text
    return [actor.last_lines[-1] for actor in self.actors]

  def check_nothing_is_left(self) -> None:
    """Checks that no process, socket or file outlives the run."""
    # The server of a killed learner ends by itself, but not at once.
    deadline = time.monotonic() + _END_SECONDS
    while list(self._pids()) and time.monotonic() < deadline:
      time.sleep(_LOOK)
    assert list(self._pids()) == []
    sockets = pathlib.Path('/proc/net/unix').read_text()
    assert str(self._root) not in sockets
    assert {p.name for p in self.workdir.iterdir()} == _KEPT
    assert list(self.temporary.iterdir()) == []
    names = {p.name for p in (self.workdir / 'reverb').iterdir()}
    assert names == {'server.log', '.server'}, names

  def kill_all(self) -> None:
    for process in self.learner, *self.actors:
      process.kill()

  def summary(self) -> dict[str, Any]:
    return runs.summary(self.workdir)

  def tally(self) -> counted.Tally:
    return counted.tally(self.record)

  def _pids(self) -> Iterator[int]:
    mark = f'{_MARK}={self._root}\0'
    for entry in pathlib.Path('/proc').iterdir():
      if entry.name.isdecimal() and mark in _read(int(entry.name), 'environ'):
        yield int(entry.name)


def _wait(actor: processes.Process) -> None:
  with contextlib.suppress(subprocess.TimeoutExpired):
    actor.popen.wait(_LOOK)


def _is_looking(actor: processes.Process) -> bool:
  lines = list(actor.last_lines)
  return bool(lines) and 'Looking for the learner' in lines[-1]


def _read(pid: int, name: str) -> str:
  try:
    return pathlib.Path(f'/proc/{pid}/{name}').read_text(errors='replace')
  except OSError:
    return ''


def _parent(pid: int) -> int:
  # The name, in parentheses, may contain anything.
  fields = _read(pid, 'stat').rpartition(')')[2].split()
  return int(fields[1]) if fields else 0


def _held(run: Chaos) -> tuple[int, int, int]:
  """Returns the learner's resident pages, open files and threads."""
  pid = run.learner.popen.pid
  return (
    int(_read(pid, 'statm').split()[1]),
    len(os.listdir(f'/proc/{pid}/fd')),
    len(os.listdir(f'/proc/{pid}/task')),
  )


@pytest.fixture
def run(tmp_path: pathlib.Path, server_python: str) -> Iterator[Chaos]:
  del server_python  # Made before a run would.
  started = Chaos(
    tmp_path,
    7,
    '--config.checkpoint.every_seconds=2',
    '--config.log.every_seconds=0.2',
  )
  yield started
  started.kill_all()


def _go_on(run: Chaos, updates: int) -> None:
  """Waits for so many more updates."""
  before = run.wait_for_updates()
  while run.wait_for_updates() < before + updates:
    pass


def _start_again(run: Chaos, frames: Callable[[int], int]) -> int:
  """Kills the learner once there is a checkpoint; see `kill_learner`."""
  while not runs.steps(run.workdir):
    run.wait_for_updates()
  total = run.kill_learner(frames)
  run.learner.wait_for('Resuming from checkpoint')
  return total


def _check(run: Chaos, total: int) -> None:
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


def test_training_survives_the_death_of_each_part(run: Chaos):
  _go_on(run, 20)
  run.kill_actor()
  _go_on(run, 20)
  run.kill_reverb()
  _go_on(run, 20)
  run.kill_actor()
  _start_again(run, lambda _: _ENDLESS)
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
def test_ten_minutes_of_killing(run: Chaos):
  """Kills actors and Reverb; the learner must not leak."""
  run.wait_for_updates()
  held = []
  for count in range(120):
    with pytest.raises(subprocess.TimeoutExpired):
      run.learner.popen.wait(5)
    run.kill_actor()
    if count in (30, 60):
      run.kill_reverb()
    held.append(_held(run))
  total = _start_again(run, lambda frames: frames + 8000)
  run.finish()
  _check(run, total)
  # By the second third, allocators are warm.
  early, late = (held[i : i + 40] for i in (40, 80))
  for before, after in zip(
    *(
      map(statistics.median, zip(*part, strict=True)) for part in (early, late)
    ),
    strict=True,
  ):
    assert after < 1.1 * before, (early, late)
