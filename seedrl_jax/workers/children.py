"""Processes of a run that are started again when they die."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from seedrl_jax.runtime import bound_child, process

# In a child's environment: what its parent tells it, as JSON.
VARIABLE = 'SEEDRL_CHILD'
# Seconds that a child has to end, before it is killed.
_END_SECONDS = 60.0
# Of the first process of a run, before the run ends.
_MOST_DEATHS = 10
# A child that dies within this many seconds of its start is started again
# after a pause, which doubles each time. The last such death in a row is final.
_SETTLED_SECONDS = 10.0
_FIRST_PAUSE = 0.5
_MOST_EARLY_DEATHS = 6


class Child:
  """One process, its log and the thread that starts it again when it dies.

  Attributes:
    link: socket to the process; it sends a byte when it is ready.
    is_ready: whether the running process has sent that byte.
    failure: why it cannot be started, a sentence; '' if it can.
  """

  def __init__(
    self,
    name: str,
    tell: Callable[[], Mapping[str, Any]],
    fds: Sequence[int],
    log: pathlib.Path,
    processors: Sequence[int],
    on_death: Callable[[], None],
  ):
    """Starts the process with this process's command line.

    Args:
      tell: returns JSON values for a process that is about to start.
      fds: file descriptors that it inherits.
      processors: those that it may use; (): all.
      on_death: called after each death, in the child's thread.
    """
    self.name = name
    self.is_ready = False
    self.failure = ''
    self.deaths = 0
    self._tell, self._fds, self._log = tell, tuple(fds), log
    self._processors, self._on_death = processors, on_death
    self._stopping = threading.Event()
    self._settled = threading.Event()
    # The kernel ends the process when the thread that started it does.
    self._thread = threading.Thread(target=self._run, name=name, daemon=True)
    self._process: subprocess.Popen[bytes] | None = None
    self._thread.start()

  def wait_ready(self) -> None:
    """Waits until the first process is ready, or has failed to start."""
    self._settled.wait()

  def terminate(self) -> None:
    """Asks the process to end; it is not started again."""
    self._stopping.set()
    if self._process is not None:
      self._process.terminate()
      # It may be stopped, and would not end before it goes on.
      self._process.send_signal(signal.SIGCONT)
      # It may wait for an answer.
      with contextlib.suppress(OSError):
        self.link.shutdown(socket.SHUT_RDWR)

  def join(self) -> None:
    """Waits for the end, which `terminate` asked for."""
    self._thread.join(_END_SECONDS)
    if self._thread.is_alive() and self._process is not None:
      self._process.kill()
      self._thread.join()

  def _run(self) -> None:
    early_deaths = 0
    try:
      while not self._stopping.is_set():
        start = time.monotonic()
        if not self._live():
          return
        self.deaths += 1
        is_early = time.monotonic() - start < _SETTLED_SECONDS
        early_deaths = early_deaths + 1 if is_early else 0
        if early_deaths == _MOST_EARLY_DEATHS:
          self.failure = (
            f'{self.name} has died {early_deaths} times soon after its start: '
            f'{_last_line(self._log)} (all in {self._log}).'
          )
          return
        self._on_death()
        if early_deaths:
          self._stopping.wait(_FIRST_PAUSE * 2 ** (early_deaths - 1))
    except Exception as e:
      self.failure = f'{self.name} cannot be started ({e}).'
    finally:
      self._settled.set()

  def _live(self) -> bool:
    """Runs one process to its end; returns whether to start another."""
    self.link, theirs = socket.socketpair()
    self._log.parent.mkdir(parents=True, exist_ok=True)
    told = {**self._tell(), 'link': theirs.fileno()}
    with theirs, self._log.open('ab') as log:
      self._process = subprocess.Popen(
        _command(self._processors),
        env={**os.environ, VARIABLE: json.dumps(told)},
        pass_fds=(*self._fds, theirs.fileno()),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        # Ctrl-C reaches the parent, which stops its children.
        start_new_session=True,
      )
    if self._stopping.is_set():
      self._process.terminate()
    if self.link.recv(1):
      self.is_ready = True
      self._settled.set()
    code = self._process.wait()
    was_ready, self.is_ready = self.is_ready, False
    if code == 0 or self._stopping.is_set():
      return False
    if not was_ready:
      self.failure = (
        f'{self.name} has ended with {_describe(code)} before it was ready: '
        f'{_last_line(self._log)} (all in {self._log}).'
      )
      return False
    return True


def told() -> dict[str, Any] | None:
  """Returns what a parent tells this process; None without a parent.

  `keep_running` tells the first worker nothing, {}.
  """
  text = os.environ.get(VARIABLE)
  return json.loads(text) if text else None


def stop(children: Sequence[Child]) -> None:
  """Ends processes and their threads."""
  for child in children:
    child.terminate()
  for child in children:
    child.join()


def keep_running() -> int:
  """Runs this process's command line in a child until it ends by itself.

  A child that a signal kills is started again, which resumes its run. Signals
  to stop are passed on.

  Returns:
    What to exit with.
  """
  child: subprocess.Popen[bytes] | None = None
  is_stopping = False

  def stop(number: int, frame: types.FrameType | None) -> None:
    nonlocal is_stopping
    del frame
    is_stopping = True
    if child is not None:
      child.send_signal(number)

  process.on_stop(stop)
  for deaths in range(1, _MOST_DEATHS + 1):
    child = subprocess.Popen(
      _command(()),
      env={**os.environ, VARIABLE: '{}'},
      # Ctrl-C reaches it only from here.
      start_new_session=True,
    )
    if is_stopping:
      child.terminate()
    code = child.wait()
    if code >= 0 or is_stopping:
      break
    end = f'Worker 0 has died ({_describe(code)})'
    if deaths < _MOST_DEATHS:
      process.say(f'{end}; it is started again from the last checkpoint.')
    else:
      process.say(f'{end} {deaths} times; the same command resumes the run.')
  # As shells count signals.
  return code if code >= 0 else 128 - code


def _command(processors: Sequence[int]) -> list[str]:
  """Returns this process's command line, for a process that ends with it."""
  return [
    sys.executable,
    bound_child.__file__,
    str(os.getpid()),
    ','.join(map(str, processors)),
    sys.executable,
    *sys.orig_argv[1:],
  ]


def _describe(code: int) -> str:
  with contextlib.suppress(ValueError):
    if code < 0:
      return f'signal {signal.Signals(-code).name}'
  return f'exit code {code}'


def _last_line(log: pathlib.Path) -> str:
  lines = log.read_text(errors='replace').strip().splitlines()
  return lines[-1] if lines else 'it said nothing'
