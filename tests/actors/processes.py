"""Learners and actors as processes, which tests cut, kill and replace."""

import collections
import contextlib
import os
import pathlib
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import ClassVar

from tests import runs
from tests.actors import counted
from tests.patience import PATIENCE

# Last lines of a process, kept for messages of failed tests.
_KEPT_LINES = 200
_FACTORY = 'tests.actors.counted:counted'


class Process:
  """A program whose lines a thread reads as they come.

  Attributes:
    started: those of the running test, which `conftest` ends.
  """

  started: ClassVar[list['Process']] = []

  def __init__(self, command: Sequence[str | pathlib.Path], **environment: str):
    self.popen = subprocess.Popen(
      command,
      env={
        **os.environ,
        'PYTHONPATH': str(runs.ROOT),
        'JAX_PLATFORMS': 'cpu',
        **environment,
      },
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      # gRPC may quote the bytes that it received.
      errors='replace',
    )
    self.last_lines: collections.deque[str]
    self.last_lines = collections.deque(maxlen=_KEPT_LINES)
    self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    self.started.append(self)
    self._reader = threading.Thread(
      target=self._read, name='reader', daemon=True
    )
    self._reader.start()

  def _read(self) -> None:
    assert self.popen.stdout is not None
    with self.popen.stdout:
      for line in self.popen.stdout:
        self.last_lines.append(line)
        self._lines.put(line)
    self._lines.put(None)

  @property
  def is_alive(self) -> bool:
    return self.popen.poll() is None

  @property
  def text(self) -> str:
    """The last lines of its output."""
    return ''.join(self.last_lines)

  def wait_for(self, pattern: str) -> re.Match[str]:
    """Reads on until a line matches."""
    deadline = time.monotonic() + PATIENCE
    with contextlib.suppress(queue.Empty):
      while (line := self._lines.get(timeout=_left(deadline))) is not None:
        if match := re.search(pattern, line):
          return match
      # For the next call.
      self._lines.put(None)
    raise AssertionError(f'No {pattern!r} in:\n{self.text}')

  def end(self, number: int | None = None) -> int:
    """Waits for its end, after a signal if one is given."""
    if number is not None:
      self.popen.send_signal(number)
    code = self.popen.wait(PATIENCE)
    self._reader.join()
    return code

  def kill(self) -> None:
    """Makes sure that it has ended."""
    self.popen.kill()
    self.popen.wait()
    self._reader.join()


def _left(deadline: float) -> float:
  return max(0.0, deadline - time.monotonic())


def learner(
  workdir: pathlib.Path,
  record: pathlib.Path,
  *flags: str,
  folder: str = '',
  **environment: str,
) -> Process:
  """Starts launch/learner.py.

  Args:
    record: file for `counted.note_unrolls`.
    folder: for the environments' files, see `counted.Counted`.
    **environment: variables.
  """
  values = {
    'agent': 'tests.actors.counted_agent',
    'env.id': 'Counted',
    'env.factory': _FACTORY,
    'env.factory_kwargs': {'folder': folder},
    'env.num_envs': 0,
    'num_eval_envs': 0,
    'unroll_length': 5,
    'batch_size': 8,
    'network.hidden_sizes': (16,),
    'optimizer.learning_rate': 3e-3,
    'topology.max_devices': 1,
    'log.writers': ('csv',),
    'total_env_frames': 10**9,
  }
  return Process(
    [
      sys.executable,
      runs.ROOT / 'launch/learner.py',
      f'--config={runs.ROOT / "configs/base.py"}',
      f'--workdir={workdir}',
      *(f'--config.{key}={value}' for key, value in values.items()),
      *flags,
    ],
    **{counted.VARIABLE: str(record), **environment},
  )


def actor(
  address: str,
  *flags: str,
  **environment: str,
) -> Process:
  """Starts launch/actor.py, with 2 groups of 2 environments; see `learner`."""
  return Process(
    [
      sys.executable,
      runs.ROOT / 'launch/actor.py',
      f'--learner={address}',
      '--envs_per_group=2',
      f'--allow_factory={_FACTORY}',
      *flags,
    ],
    **environment,
  )
