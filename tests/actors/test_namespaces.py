"""Tests with actors on other hosts, one of which is cut off for a while.

Each host is a network namespace, joined by a bridge. A cut removes its cable
from the bridge, so packets are lost silently, as with a failed switch.
"""

import collections
import os
import pathlib
import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests import runs
from tests.actors import counted, processes

_ENVS = 4  # of an actor, in two groups
_BRIDGE = 'bridge'
_PATIENT = (runs.ROOT / 'tests/actors/patient.py',)


def _ip(*arguments: str) -> None:
  subprocess.run(['ip', *arguments], check=True, capture_output=True)


class Hosts:
  """The hosts of a learner and of two actors."""

  def __init__(self) -> None:
    """Makes and joins them.

    Raises:
      OSError, subprocess.CalledProcessError: if that is not permitted.
    """
    self._names = [f'seedrl-{os.getpid()}-{i}' for i in range(3)]
    self._learner = self._names[0]
    self.address = '10.231.0.1:7077'
    self._made: list[str] = []
    try:
      self._make()
    except BaseException:
      self.close()
      raise

  def _make(self) -> None:
    for name in self._names:
      _ip('netns', 'add', name)
      self._made.append(name)
      _ip('-n', name, 'link', 'set', 'lo', 'up')
    hub = '-n', self._learner
    _ip(*hub, 'link', 'add', _BRIDGE, 'type', 'bridge')
    _ip(*hub, 'address', 'add', '10.231.0.1/24', 'dev', _BRIDGE)
    _ip(*hub, 'link', 'set', _BRIDGE, 'up')
    for i, name in enumerate(self._names[1:]):
      there = '-n', name
      _ip(
        *(*hub, 'link', 'add', f'port{i}', 'type', 'veth'),
        *('peer', 'name', 'uplink', 'netns', name),
      )
      _ip(*hub, 'link', 'set', f'port{i}', 'up')
      _ip(*there, 'address', 'add', f'10.231.0.{i + 2}/24', 'dev', 'uplink')
      _ip(*there, 'link', 'set', 'uplink', 'up')
      self.join(i)

  @property
  def at_learner(self) -> tuple[str, ...]:
    """Command prefix for the learner's host."""
    return 'ip', 'netns', 'exec', self._learner

  def at_actor(self, index: int) -> tuple[str, ...]:
    """Command prefix for an actor's host."""
    return 'ip', 'netns', 'exec', self._names[1 + index]

  def cut(self, index: int) -> None:
    """Cuts an actor's host off."""
    _ip('-n', self._learner, 'link', 'set', f'port{index}', 'nomaster')

  def join(self, index: int) -> None:
    """Ends `cut`."""
    _ip('-n', self._learner, 'link', 'set', f'port{index}', 'master', _BRIDGE)

  def close(self) -> None:
    for name in self._made:
      _ip('netns', 'delete', name)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
  try:
    made = Hosts()
  except (OSError, subprocess.CalledProcessError) as e:
    pytest.skip(f'Network namespaces cannot be had here: {e}')
  yield made
  made.close()


class Training:
  """A learner and two actors on three hosts."""

  def __init__(self, hosts: Hosts, root: pathlib.Path, timeout: float):
    self.workdir = root / 'run'
    self.folder = root / 'environments'
    self.folder.mkdir()
    self.record = root / 'record'
    self.learner = processes.learner(
      self.workdir,
      self.record,
      '--config.replay.backend=embedded',
      '--config.log.every_seconds=0.1',
      f'--config.actors.max_envs={2 * _ENVS}',
      f"--config.actors.addresses=('{hosts.address}',)",
      '--config.actors.insecure',
      f'--config.actors.timeout={timeout}',
      prefix=hosts.at_learner,
      wrapper=_PATIENT,
      folder=str(self.folder),
    )
    self.actors = [
      processes.actor(
        hosts.address,
        '--insecure',
        prefix=hosts.at_actor(i),
        wrapper=_PATIENT,
      )
      for i in range(2)
    ]

  def go_on(self, done: Callable[[float, float], bool]) -> tuple[float, float]:
    """Waits for a report with `done(frames, connected environments)`.

    Returns these two.
    """
    while True:
      self.learner.wait_for('updates')
      row = runs.rows(self.workdir)[-1]
      now = float(row['time/env_frames']), float(row['actors/connected_envs'])
      if done(*now):
        return now

  def stop(self) -> None:
    for process in self.learner, *self.actors:
      assert process.end(signal.SIGTERM) == 0, process.text

  def kill_all(self) -> None:
    for process in self.learner, *self.actors:
      process.kill()


@pytest.fixture
def start(
  hosts: Hosts, tmp_path: pathlib.Path
) -> Iterator[Callable[[float], Training]]:
  """Yields a function that starts a training with this `actors.timeout`."""
  started: list[Training] = []

  def start_one(timeout: float) -> Training:
    started.append(Training(hosts, tmp_path, timeout))
    return started[-1]

  yield start_one
  for training in started:
    training.kill_all()


def _check_every_step(training: Training) -> None:
  """Checks that a stopped training lost no step and counted none twice."""
  tally = counted.tally(training.record)
  assert (tally.broken, tally.missing, tally.repeated) == (0, 0, 0)
  taken = counted.actions_taken(training.folder)
  # A group makes two new environments each time it joins.
  assert len(taken) == 2 * sum(_num_runs(actor) for actor in training.actors)
  # Only an environment's last step may not have arrived.
  lost = sum(taken) - runs.summary(training.workdir)['env_steps']
  assert 0 <= lost <= len(taken)


def _num_runs(actor: processes.Process) -> int:
  kinds = collections.Counter(line.split()[1] for line in actor.last_lines)
  return kinds['Run']


def test_who_is_cut_off_for_long_is_dropped_and_joins_again(
  hosts: Hosts, start: Callable[[float], Training]
):
  training = start(1.0)
  frames, _ = training.go_on(lambda f, e: f > 500 and e == 2 * _ENVS)
  hosts.cut(0)
  frames, _ = training.go_on(lambda f, e: e == _ENVS)
  frames, _ = training.go_on(lambda f, e: f > frames + 1000)
  hosts.join(0)
  frames, _ = training.go_on(lambda f, e: e == 2 * _ENVS)
  training.go_on(lambda f, e: f > frames + 1000)
  training.stop()
  # More, if a busy machine delayed them as long as a cut.
  assert _num_runs(training.actors[0]) >= 4
  _check_every_step(training)
