"""A run whose actors, Reverb server and learner are killed repeatedly.

Its environments, `tests.actors.counted`, account for every step.
"""

import contextlib
import dataclasses
import os
import pathlib
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests import runs
from tests.actors import counted, processes

NUM_ACTORS = 4
# An environment variable that marks all processes of a run.
_MARK = 'SEEDRL_TEST_CHAOS'
_SERVER = 'reverb/server/main.py'
# More frames than any run reaches.
ENDLESS = 10**9
# Seconds between two checks of processes, and for the last of them to end.
_LOOK, _END_SECONDS = 0.05, 120.0
# What a run leaves in its work directory.
_KEPT = {
  'checkpoints',
  'config.json',
  'metrics.csv',
  'replay',
  'reverb',
  'run.lock',
  'summary.json',
  'versions.jsonl',
}


@dataclasses.dataclass(frozen=True)
class Sample:
  """What a learner's process held at a moment.

  Attributes:
    start: number of the learner's start, from 0.
    megabytes: resident memory.
    files: open descriptors.
  """

  start: int
  megabytes: int
  files: int
  threads: int


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
    self.samples: list[Sample] = []
    self.kills = dict.fromkeys(('actor', 'reverb', 'learner'), 0)
    self._root = root
    self._flags = flags
    self._random = random.Random(seed)
    self._variables = {_MARK: str(root), 'TMPDIR': str(self.temporary)}
    self.learner = self._start_learner(ENDLESS)
    self.actors = [self._start_actor() for _ in range(NUM_ACTORS)]

  def _start_learner(self, frames: int) -> processes.Process:
    return processes.learner(
      self.workdir,
      self.record,
      f'--config.actors.max_envs={4 * NUM_ACTORS}',
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
    return int(float(runs.column(self.workdir, 'time/env_frames')[-1]))

  def wait_for_updates(self) -> int:
    """Waits for a report; returns its number of updates."""
    self.learner.wait_for(' updates')
    return int(float(runs.column(self.workdir, 'time/updates')[-1]))

  def kill_actor(self) -> None:
    """Kills a random actor and starts another."""
    index = self._random.randrange(NUM_ACTORS)
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

  def sample(self) -> None:
    pid = self.learner.popen.pid
    status = dict(
      line.split(':', 1) for line in _read(pid, 'status').splitlines()
    )
    self.samples.append(
      Sample(
        start=self.kills['learner'],
        megabytes=int(status['VmRSS'].split()[0]) // 1024,
        files=len(os.listdir(f'/proc/{pid}/fd')),
        threads=int(status['Threads']),
      )
    )

  def finish(self) -> list[str]:
    """Waits for the training's end; returns the actors' last lines.

    Actors without a learner at that moment are told to end.
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
