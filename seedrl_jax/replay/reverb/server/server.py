"""Starts, watches, restarts and stops a Reverb server process."""

import contextlib
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging

from seedrl_jax.replay import base
from seedrl_jax.replay.reverb import errors
from seedrl_jax.replay.reverb.server import checkpoint_files
from seedrl_jax.runtime import process as process_lib

_MAIN = pathlib.Path(__file__).with_name('main.py')
# Seconds from SIGTERM to SIGKILL. SIGTERM ends the process at once, without
# saving, unless it hangs in the kernel.
_GRACE = 5.0
_LOG_LINES = 3
# Seconds for a server to start; imports take 2 to 10 of them.
_START = 120.0
# Bytes of a checkpoint that a slow machine loads per second.
_LOAD_RATE = 10e6
_ENVIRONMENT = {
  'TF_CPP_MIN_LOG_LEVEL': '2',
  'TF_ENABLE_ONEDNN_OPTS': '0',
  # Reverb finds the newest checkpoint by its name, a local time, which daylight
  # saving would set back.
  'TZ': 'UTC',
}


class ServerFailed(errors.ReverbError):
  """The server did not start, or ended by itself."""


class ReverbServer(contextlib.AbstractContextManager):
  """A Reverb server owned by this process; thread-safe.

  It ends with `close`, or when this process ends in any way. Its `port` is
  valid after `start`.
  """

  def __init__(
    self,
    python: str,
    tables: Sequence[Mapping[str, Any]],
    checkpoint_dir: str | None = None,
    port: int = 0,
    keep_checkpoints: bool = True,
  ):
    """Makes a server that has not started.

    Args:
      python: an interpreter that has Reverb (`environment.ensure`).
      tables: rules as in `main.py`.
      checkpoint_dir: for checkpoints and the log of one server at a time; made
        if absent. None: a temporary folder.
      port: to listen on; 0: any free port.
      keep_checkpoints: whether those left in the folder survive a start.
    """
    self._python = python
    self._tables = list(tables)
    self._wanted_port = port
    self.port = port
    self._lock = threading.RLock()
    self._process: subprocess.Popen | None = None
    self._closed = False
    self._scratch: tempfile.TemporaryDirectory | None = None
    if checkpoint_dir is None:
      self._scratch = tempfile.TemporaryDirectory(prefix='seedrl-reverb-')
      checkpoint_dir = self._scratch.name
    self._folder = pathlib.Path(checkpoint_dir).absolute()
    self._keeps_checkpoints = keep_checkpoints
    self.log_path = self._folder / 'server.log'
    self._output = self._folder / '.server'  # where the server writes
    self._rewritten = self._folder / '.restored'  # a checkpoint as it is loaded

  @property
  def address(self) -> str:
    """Its address on this machine; valid after `start`."""
    return f'127.0.0.1:{self.port}'

  def checkpoints(self) -> list[pathlib.Path]:
    """Returns the checkpoints in its folder, newest first."""
    with self._lock:
      if not self.is_alive():
        self._collect()
      return checkpoint_files.newest_first(self._folder)

  def start(self, restore: str | None = None) -> None:
    """Starts the process, instead of one that runs, and waits until it serves.

    The tables are empty, or those of the checkpoint `restore` under the current
    rules. The port stays the same if it is still free.

    Raises:
      CheckpointError: if the checkpoint is missing, damaged or of other tables.
      ServerFailed: if the server does not come up.
      StoreClosed: if it was closed.
    """
    with self._lock:
      if self._closed:
        raise base.StoreClosed('The Reverb server was closed.')
      self.stop()
      self._prepare()
      try:
        self._process = self._launch(restore)
      except OSError as e:
        raise ServerFailed(
          f'The Reverb server cannot be started with {self._python} '
          f'({e.strerror}); name another Python by --reverb_python.'
        ) from e
    # `stop` ends this.
    self._wait_ready(restore)

  def _collect(self) -> None:
    """Moves the checkpoints of a server that has ended out of its output."""
    if self._keeps_checkpoints:
      for path in checkpoint_files.newest_first(self._output):
        checkpoint_files.keep(path, self._folder / path.name)

  def _prepare(self) -> None:
    """Prepares the folder for a start."""
    self._collect()
    for folder in (self._rewritten, self._output):
      shutil.rmtree(folder, ignore_errors=True)
    self._output.mkdir(parents=True)

  def _launch(self, restore: str | None) -> subprocess.Popen:
    config = {
      'port': self.port,
      'fixed': bool(self._wanted_port),
      'tables': self._tables,
      'checkpoints': str(self._output),
      'restore': restore,
      'rewritten': str(self._rewritten),
      'processors': process_lib.PROCESSORS,
    }
    with self.log_path.open('ab') as output:
      process = subprocess.Popen(
        [self._python, '-I', str(_MAIN)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=output,
        env={**os.environ, **_ENVIRONMENT},
        # Ctrl-C in a terminal must not reach it; the owner stops it.
        start_new_session=True,
      )
    # Stays open: the server ends when this is closed.
    assert process.stdin is not None
    # If it has ended already, `_wait_ready` reports it.
    with contextlib.suppress(BrokenPipeError):
      os.write(process.stdin.fileno(), json.dumps(config).encode() + b'\n')
    return process

  def _wait_ready(self, restore: str | None) -> None:
    timeout = _START
    if restore is not None:
      files = pathlib.Path(restore).glob('*')
      timeout += sum(file.stat().st_size for file in files) / _LOAD_RATE
    output = self._current().stdout
    assert output is not None
    # There is one answer.
    with output:
      # `select.select` refuses descriptors from 1024 on.
      poll = select.poll()
      poll.register(output, select.POLLIN)
      if not poll.poll(int(timeout * 1000)):
        raise self.failure('does not come up')
      line = output.readline()
    if not line:
      self.wait_end(_GRACE)
      raise self.failure('did not come up')
    answer = json.loads(line)
    if 'error' in answer:
      self.wait_end(_GRACE)
      raise self._refusal(answer['kind'], answer['error'], restore)
    self.port = answer['port']
    logging.warning(
      'Reverb listens on port %d of every network interface, without '
      'authentication, and has no setting for this; unless this network is '
      'trusted, keep others out: sudo iptables -I INPUT -p tcp --dport %d '
      '! -i lo -j DROP',
      self.port,
      self.port,
    )

  def is_alive(self) -> bool:
    """Returns whether the process runs."""
    process = self._process
    return process is not None and process.poll() is None

  def wait_end(self, timeout: float = threading.TIMEOUT_MAX) -> bool:
    """Returns whether the process ended within `timeout` seconds."""
    try:
      # With a time-out it looks for signals.
      self._current().wait(timeout)
    except subprocess.TimeoutExpired:
      return False
    return True

  def stop(self) -> None:
    """Ends the process, if any; the tables' contents are lost."""
    with self._lock:
      process = self._process
      if process is None:
        return
      process.terminate()
      if not self.wait_end(_GRACE):
        process.kill()
        process.wait()
      assert process.stdin is not None
      process.stdin.close()

  def __exit__(self, *unused: object) -> None:
    self.close()

  def close(self) -> None:
    """Stops it for good; may be called again."""
    with self._lock:
      if not self._closed:
        self._closed = True
        self.stop()
        shutil.rmtree(self._rewritten, ignore_errors=True)
        if self._scratch is not None:
          self._scratch.cleanup()

  def _current(self) -> subprocess.Popen:
    process = self._process
    if process is None:
      raise ServerFailed('The Reverb server has not been started.')
    return process

  def failure(self, what: str = 'ended') -> ServerFailed:
    """Returns an error that says how the process ended, with its last lines."""
    process = self._current()
    code = process.poll()
    if code is None:
      how = 'still runs'
    elif code < 0:
      how = f'was ended by {signal.Signals(-code).name}'
    else:
      how = f'ended with exit code {code}'
    log, text = self.log_path, ''
    # Another thread may close the server, which removes the log.
    with contextlib.suppress(FileNotFoundError):
      text = log.read_text(errors='replace')
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return ServerFailed(
      f'The Reverb server at {self.address} (process {process.pid}) {what}: it '
      f'{how}; its log is {log}, and its last lines are: '
      f'{" | ".join(lines[-_LOG_LINES:]) or "(none)"}'
    )

  def _refusal(self, kind: str, error: str, restore: str | None) -> Exception:
    """Returns the exception for an error answered by `main.py`."""
    if kind == 'port':
      return ServerFailed(
        f'Port {self.port} is in use; give the Reverb server another, or 0 for '
        'any that is free.'
      )
    if kind == 'checkpoint':
      return base.CheckpointError(error)
    if restore:
      return base.CheckpointError(
        f'The replay checkpoint {restore} cannot be loaded ({error}); use an '
        'older one, or remove it to start with an empty replay.'
      )
    return ServerFailed(
      f'The Reverb server did not come up: {error}; its log is {self.log_path}.'
    )
