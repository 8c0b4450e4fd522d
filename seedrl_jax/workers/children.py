"""Processes of a run that are started again when they die."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import connection
from typing import Any

from seedrl_jax.runtime import bound_child, process
from seedrl_jax.workers import links

# In a child's environment: settings from its parent, as JSON.
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
# Looks in a row at a process without progress before it has hung.
_MOST_LOOKS = 10


class Child:
  """One process, its log and the thread that starts it again when it dies.

  The process calls `set_ready`.
  """

  def __init__(
    self,
    title: str,  # in messages, such as 'Worker 1'
    # Returns JSON values for a process that starts after that many deaths.
    make_info: Callable[[int], Mapping[str, Any]],
    fds: Sequence[int],  # file descriptors that it inherits
    log: pathlib.Path,
    processors: Sequence[int],  # those that it may use; () means all
    on_death: Callable[[], None],  # called after each, in the child's thread
    patience: float,  # seconds without progress after which it has hung
  ):
    """Starts the process with this process's command line."""
    self.is_ready = False
    # A sentence if the run must end.
    self.failure = ''
    self.deaths = 0
    self._title, self._patience = title, patience
    self._make_info, self._fds, self._log = make_info, tuple(fds), log
    self._processors, self._on_death = processors, on_death
    self._ready = links.ProcessEvent()
    self._stopping = threading.Event()
    self._settled = threading.Event()
    # The kernel ends the process when the thread that started it does.
    self._thread = threading.Thread(target=self._run, name=title, daemon=True)
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
            f'{self._title} has died {early_deaths} times soon after its '
            f'start: {_last_line(self._log)} (all in {self._log}).'
          )
          return
        self._on_death()
        if early_deaths:
          self._stopping.wait(_FIRST_PAUSE * 2 ** (early_deaths - 1))
    except Exception as e:
      self.failure = f'{self._title} cannot be started ({e}).'
    finally:
      self._settled.set()

  def _live(self) -> bool:
    """Runs one process to its end; returns whether to start another."""
    self._log.parent.mkdir(parents=True, exist_ok=True)
    info = {**self._make_info(self.deaths), 'ready': self._ready.fd}
    with self._log.open('ab') as log:
      self._process = subprocess.Popen(
        _command(self._processors),
        env={**os.environ, VARIABLE: json.dumps(info)},
        pass_fds=(*self._fds, self._ready.fd),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        # Ctrl-C reaches the parent, which stops its children.
        start_new_session=True,
      )
    if self._stopping.is_set():
      self._process.terminate()
    has_hung = not wait_for_end(
      self._process, self._patience, self._ready, self._set_ready
    )
    was_ready, self.is_ready = self.is_ready, False
    code = self._process.returncode
    if code == 0 or self._stopping.is_set():
      return False
    if has_hung:
      self.failure = _hang_message(self._title, self._patience)
    elif not was_ready:
      self.failure = (
        f'{self._title} has ended with {_describe(code)} before it was ready: '
        f'{_last_line(self._log)} (all in {self._log}).'
      )
    return not self.failure

  def _set_ready(self) -> None:
    self.is_ready = True
    self._settled.set()


def parent_info() -> dict[str, Any] | None:
  """Returns settings from this process's parent; None without a parent."""
  text = os.environ.get(VARIABLE)
  return json.loads(text) if text else None


def set_ready(info: Mapping[str, Any]) -> None:
  """Tells this process's parent, which gave `info`, that it is ready."""
  links.ProcessEvent(info['ready']).set()


def stop(children: Sequence[Child]) -> None:
  for child in children:
    child.terminate()
  for child in children:
    child.join()


def keep_running(patience: float) -> int:
  """Runs this process's command line in a child until it ends by itself.

  A child that a signal kills is started again, which resumes its run. One that
  hangs for `patience` seconds ends the run. Signals to stop are passed on.

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
      # It has a parent, but no settings.
      env={**os.environ, VARIABLE: '{}'},
      # Ctrl-C reaches it only from here.
      start_new_session=True,
    )
    if is_stopping:
      child.terminate()
    if not wait_for_end(child, patience):
      process.write(sys.stderr, _hang_message('Worker 0', patience) + '\n')
      return 1
    code = child.returncode
    if code >= 0 or is_stopping:
      break
    end = f'Worker 0 has died ({_describe(code)})'
    if deaths < _MOST_DEATHS:
      process.say(f'{end}; it is started again from the last checkpoint.')
    else:
      process.say(f'{end} {deaths} times; the same command resumes the run.')
  # As shells count signals.
  return code if code >= 0 else 128 - code


def wait_for_end(
  child: subprocess.Popen[bytes],
  patience: float,
  ready: links.ProcessEvent | None = None,
  on_ready: Callable[[], None] = lambda: None,
) -> bool:
  """Waits until a process ends; kills it and returns False if it has hung.

  It has hung if neither it nor its children in its session have used any
  processor time for `patience` seconds. A stopped process (SIGSTOP) uses none,
  and neither does a deadlocked one. One that compiles, or steps environments,
  does. One that waits for another process looks around every
  `links.LOOK_SECONDS`, which takes time, too.

  `on_ready` is called when `ready` is set.
  """
  pidfd = os.pidfd_open(child.pid)
  fds = [pidfd] if ready is None else [pidfd, ready.fd]
  times: list[float] = []
  num_looks = 0
  try:
    while num_looks < _MOST_LOOKS:
      news = connection.wait(fds, patience / _MOST_LOOKS)
      # First, as a process may end right after it is ready.
      if ready is not None and ready.fd in news:
        ready.wait()
        on_ready()
      if pidfd in news:
        child.wait()
        return True
      if news:
        continue
      # Looks are counted, as this process may have been stopped, too.
      before, times = times, _processor_times(child.pid, child.pid)
      num_looks = num_looks + 1 if times and times == before else 0
  finally:
    os.close(pidfd)
  child.kill()
  child.wait()
  return False


def _hang_message(title: str, patience: float) -> str:
  return (
    f'{title} has hung: it has used no processor time for {patience:g} s; give '
    'it longer with --config.asynchronous.patience, or start the run again to '
    'resume from its last checkpoint.'
  )


def _processor_times(pid: int, session: int) -> list[float]:
  """Returns processor times of a process and its children in a session."""
  times = []
  # Any of them may end meanwhile.
  with contextlib.suppress(OSError):
    if os.getsid(pid) == session:
      # As `clock_getcpuclockid`, which Python lacks.
      times.append(time.clock_gettime(~pid << 3 | 2))
      for path in pathlib.Path(f'/proc/{pid}/task').glob('*/children'):
        for child in path.read_text().split():
          times += _processor_times(int(child), session)
  return times


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
  return lines[-1] if lines else 'its log is empty'
