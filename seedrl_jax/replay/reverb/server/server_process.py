"""One life of a Reverb server's process: starts it, hears it, ends it.

Called by `server.py` alone. No thread waits for the process: whoever wants to
know of its end asks its pidfd.
"""

import contextlib
import json
import os
import pathlib
import select
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from typing import Any

_MAIN = pathlib.Path(__file__).with_name('main.py')
# Seconds from SIGTERM to SIGKILL. Nothing is saved in between; the default
# action of SIGTERM ends the process at once unless it hangs in the kernel.
_GRACE = 5.0
# Seconds after which a wait without end looks for signals.
_PIECE = 1.0
_LOG_LINES = 3
_LOG_BYTES = 4096


class ServerProcess:
  """A process that was started; any thread may call it."""

  def __init__(self, python: str, config: Mapping[str, Any], log: pathlib.Path):
    """Starts the process.

    Args:
      python: the server environment's interpreter.
      config: what `main.py` takes.
      log: file that gets what the server says.

    Raises:
      OSError: where the interpreter or the log cannot be used.
    """
    environment = {
      **os.environ,
      'TF_CPP_MIN_LOG_LEVEL': '2',
      'TF_ENABLE_ONEDNN_OPTS': '0',
      # Reverb names checkpoints by local time and takes the last name for the
      # newest; local time jumps back once a year.
      'TZ': 'UTC',
    }
    self._log = log
    self._lock = threading.Lock()
    self._hearing = threading.Lock()
    self._heard = b''
    with log.open('ab') as output:
      self._popen = subprocess.Popen(
        [python, '-I', str(_MAIN)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=output,
        env=environment,
        # Out of reach of a terminal's Ctrl-C: the owner stops it when it has
        # finished with it.
        start_new_session=True,
      )
    self.pid = self._popen.pid
    # The process is not reaped before its descriptor is open.
    self._descriptor = os.pidfd_open(self.pid)
    self._tell(config)

  def _tell(self, config: Mapping[str, Any]) -> None:
    # Stays open: its end tells the server of ours.
    assert self._popen.stdin is not None
    line = json.dumps(config).encode() + b'\n'
    # Where it has ended already, `hear` tells.
    with contextlib.suppress(BrokenPipeError):
      os.write(self._popen.stdin.fileno(), line)

  def hear(self, deadline: float) -> dict[str, Any] | None:
    """Returns the server's one answer; None where it ends without.

    Args:
      deadline: by `time.monotonic`.

    Raises:
      TimeoutError: at the deadline.
    """
    assert self._popen.stdout is not None
    descriptor = self._popen.stdout.fileno()
    with self._hearing:
      while not self._heard.endswith(b'\n'):
        if not _readable(descriptor, deadline - time.monotonic()):
          raise TimeoutError
        piece = os.read(descriptor, 4096)
        if not piece:
          return None
        self._heard += piece
      return json.loads(self._heard)

  def wait(self, timeout: float | None) -> bool:
    """Waits until the process has ended; returns whether it has."""
    with self._lock:
      if self._popen.returncode is not None:
        return True
      # Of its own, as another thread may close the first one.
      descriptor = os.dup(self._descriptor)
    try:
      # In pieces: a signal that comes just before a wait does not end it, and
      # its handler runs after it.
      while timeout is None:
        if _readable(descriptor, _PIECE):
          return True
      return _readable(descriptor, timeout)
    finally:
      os.close(descriptor)

  @property
  def exit_code(self) -> int | None:
    """Its exit code, -n where signal n ended it; None while it runs."""
    with self._lock:
      return self._popen.poll()

  def how_it_ended(self) -> str:
    """Returns how it ended and its last lines, without a full stop."""
    code = self.exit_code
    if code is None:
      how = 'still runs'
    elif code < 0:
      how = f'was ended by {signal.Signals(-code).name}'
    else:
      how = f'ended with exit code {code}'
    return f'{how}; its log is {self._log}, and its last lines are: ' + (
      ' | '.join(self.last_lines()) or '(none)'
    )

  def last_lines(self) -> list[str]:
    """Returns the last lines of its log; none where that is gone."""
    if not self._log.exists():
      return []
    with self._log.open('rb') as file:
      file.seek(0, os.SEEK_END)
      file.seek(max(0, file.tell() - _LOG_BYTES))
      lines = file.read().decode(errors='replace').splitlines()
    return [line.strip() for line in lines if line.strip()][-_LOG_LINES:]

  def stop(self) -> None:
    """Ends the process and its group; returns when they have ended."""
    with self._lock:
      if self._popen.returncode is not None:
        return
      # Unlike Popen's own way this does not reap it, so that its group's
      # number is not another's yet.
      signal.pidfd_send_signal(self._descriptor, signal.SIGTERM)
      _readable(self._descriptor, _GRACE)
      os.killpg(self.pid, signal.SIGKILL)
      self._popen.wait()

  def close(self) -> None:
    """Stops it and closes what belongs to it."""
    self.stop()
    # Whoever still listens hears that it has ended, and is gone soon.
    with self._hearing, self._lock:
      if self._descriptor < 0:
        return
      os.close(self._descriptor)
      self._descriptor = -1
      for pipe in (self._popen.stdin, self._popen.stdout):
        assert pipe is not None
        pipe.close()


def _readable(descriptor: int, timeout: float | None) -> bool:
  # Not select.select, which refuses descriptors from 1024 on.
  poll = select.poll()
  poll.register(descriptor, select.POLLIN)
  milliseconds = None if timeout is None else max(0, int(timeout * 1000))
  return bool(poll.poll(milliseconds))
