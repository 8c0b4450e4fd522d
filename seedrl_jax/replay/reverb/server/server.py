"""Starts, watches, restarts and stops a Reverb server process."""

import contextlib
import json
import os
import pathlib
import select
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from absl import logging

from seedrl_jax.replay import base
from seedrl_jax.replay.reverb import transport
from seedrl_jax.replay.reverb.client import errors
from seedrl_jax.replay.reverb.server import checkpoint_files

_MAIN = pathlib.Path(__file__).with_name('main.py')
# Seconds from SIGTERM to SIGKILL. SIGTERM ends the process at once, without
# saving, unless it hangs in the kernel.
_GRACE = 5.0
# Seconds between checks for signals in an unlimited wait.
_PIECE = 1.0
_LOG_LINES = 3
_LOG_BYTES = 4096
# Seconds for a server to start; imports take 2 to 10 of them.
_START = 120.0
# Bytes of a checkpoint that a slow machine loads per second.
_LOAD_RATE = 10e6
_INFO = '/deepmind.reverb.ReverbService/ServerInfo'


class ServerFailed(errors.ReverbError):
  """The server did not start, or ended by itself."""


class PortInUse(ServerFailed):
  """Another process listens on the requested port."""


def exposure_warning(port: int) -> str:
  """Returns a warning that anyone can connect, with a remedy."""
  return (
    f'Reverb listens on port {port} of every network interface, without '
    'authentication, and cannot be told otherwise; unless this network is '
    'trusted, keep others out: sudo iptables -I INPUT -p tcp '
    f'--dport {port} ! -i lo -j DROP'
  )


def answers(address: str, timeout: float) -> bool:
  """Returns whether a Reverb server answers within `timeout` seconds."""
  with grpc.insecure_channel(
    address, options=transport.CHANNEL_OPTIONS
  ) as channel:
    # Without serializers, gRPC passes bytes through.
    try:
      channel.unary_unary(_INFO)(b'', timeout=timeout, wait_for_ready=True)
    except grpc.RpcError:
      return False
  return True


class ServerProcess:
  """A process that runs `main.py` with `config`; thread-safe.

  Raises:
    OSError: if the interpreter `python` or the log cannot be used.
  """

  def __init__(self, python: str, config: Mapping[str, Any], log: pathlib.Path):
    environment = {
      **os.environ,
      'TF_CPP_MIN_LOG_LEVEL': '2',
      'TF_ENABLE_ONEDNN_OPTS': '0',
      # Reverb finds the newest checkpoint by its name, a local time, which
      # daylight saving would set back.
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
        # Ctrl-C in a terminal must not reach it; the owner stops it.
        start_new_session=True,
      )
    self.pid = self._popen.pid
    # Safe: nothing has reaped the process yet.
    self._descriptor = os.pidfd_open(self.pid)
    self._tell(config)

  def _tell(self, config: Mapping[str, Any]) -> None:
    # Stays open: the server ends when this is closed.
    assert self._popen.stdin is not None
    line = json.dumps(config).encode() + b'\n'
    # If it has ended already, `hear` reports it.
    with contextlib.suppress(BrokenPipeError):
      os.write(self._popen.stdin.fileno(), line)

  def hear(self, deadline: float) -> dict[str, Any] | None:
    """Returns the server's answer; None if it ends without one.

    Raises:
      TimeoutError: if there is none by the deadline, in `time.monotonic`.
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
      # A copy, as another thread may close the descriptor.
      descriptor = os.dup(self._descriptor)
    try:
      # In pieces: a signal just before a wait does not interrupt it, and Python
      # runs the handler only afterwards.
      while timeout is None:
        if _readable(descriptor, _PIECE):
          return True
      return _readable(descriptor, timeout)
    finally:
      os.close(descriptor)

  @property
  def exit_code(self) -> int | None:
    """The exit code, -n after signal n; None while it runs."""
    with self._lock:
      return self._popen.poll()

  def how_it_ended(self) -> str:
    """Returns how it ended and its last log lines, without a full stop."""
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
    """Returns the log's last lines; none if it is missing."""
    if not self._log.exists():
      return []
    with self._log.open('rb') as file:
      file.seek(0, os.SEEK_END)
      file.seek(max(0, file.tell() - _LOG_BYTES))
      lines = file.read().decode(errors='replace').splitlines()
    return [line.strip() for line in lines if line.strip()][-_LOG_LINES:]

  def stop(self) -> None:
    """Ends the process and its group, and waits for that."""
    with self._lock:
      if self._popen.returncode is not None:
        return
      # Unlike `Popen.terminate` this does not reap it, so its group's number
      # cannot be reused yet.
      signal.pidfd_send_signal(self._descriptor, signal.SIGTERM)
      _readable(self._descriptor, _GRACE)
      os.killpg(self.pid, signal.SIGKILL)
      self._popen.wait()

  def close(self) -> None:
    """Stops it and closes its pipes."""
    self.stop()
    # A thread in `hear` returns once the process has ended.
    with self._hearing, self._lock:
      if self._descriptor < 0:
        return
      os.close(self._descriptor)
      self._descriptor = -1
      for pipe in (self._popen.stdin, self._popen.stdout):
        assert pipe is not None
        pipe.close()


def _readable(descriptor: int, timeout: float | None) -> bool:
  # `select.select` refuses descriptors from 1024 on.
  poll = select.poll()
  poll.register(descriptor, select.POLLIN)
  milliseconds = None if timeout is None else max(0, int(timeout * 1000))
  return bool(poll.poll(milliseconds))


class ReverbServer(contextlib.AbstractContextManager):
  """A Reverb server owned by this process; thread-safe.

  It ends with `close`, or when this process ends in any way.
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
    self._port = port
    self._lock = threading.RLock()
    self._process: ServerProcess | None = None
    self._closed = False
    self._restore: str | None = None
    self._folder = checkpoint_files.ServerFolder(
      checkpoint_dir, keep_checkpoints
    )

  @property
  def port(self) -> int:
    """The port; valid after `wait_ready`."""
    return self._port

  @property
  def address(self) -> str:
    """Its address on this machine; valid after `wait_ready`."""
    return f'localhost:{self._port}'

  @property
  def pid(self) -> int | None:
    """The process number; None before `start`."""
    process = self._process
    return process.pid if process else None

  @property
  def log_path(self) -> pathlib.Path:
    """The file with the server's output."""
    return self._folder.log

  def checkpoints(self) -> list[pathlib.Path]:
    """Returns the checkpoints in its folder, newest first."""
    with self._lock:
      if not self.is_alive():
        self._folder.collect()
      return self._folder.checkpoints()

  def start(self, restore: str | None = None) -> None:
    """Starts the process, empty or with `restore` under the current rules.

    Raises:
      ServerFailed: if the process cannot be started.
      StoreClosed: if it was closed.
    """
    with self._lock:
      self._start(restore)

  def wait_ready(self, timeout: float | None = None) -> None:
    """Waits until the server answers.

    Raises:
      CheckpointError: if the checkpoint is missing, damaged or of other tables.
      PortInUse: if another process listens on the requested port.
      ServerFailed: if it ended, was stopped, or does not answer in `timeout`
        seconds (None: enough for a slow machine).
    """
    if timeout is None:
      timeout = _START
      if self._restore:
        timeout += checkpoint_files.num_bytes(self._restore) / _LOAD_RATE
    deadline = time.monotonic() + timeout
    process = self._current()
    self._port = self._hear_port(process, deadline)
    # In short pieces, to notice if the process ends.
    while not answers(self.address, timeout=1.0):
      if process.exit_code is not None or time.monotonic() > deadline:
        raise self._failed(process, 'does not answer')
    self._folder.remove_rewritten()
    logging.warning('%s', exposure_warning(self._port))

  def is_alive(self) -> bool:
    """Returns whether the process runs."""
    process = self._process
    return process is not None and process.exit_code is None

  def wait_end(self, timeout: float | None = None) -> bool:
    """Returns whether the process ended within `timeout` seconds."""
    return self._current().wait(timeout)

  def how_it_ended(self) -> str:
    """Returns a sentence on how the process ended, with its last log lines."""
    return str(self._failed(self._current(), 'ended'))

  def restart(self, restore: str | None = None) -> None:
    """Restarts it as `start` does, on the same port if that is still free."""
    with self._lock:
      self.stop()
      self._start(restore)

  def stop(self) -> None:
    """Ends the process; the tables' contents are lost."""
    with self._lock:
      if self._process is not None:
        self._process.stop()

  def __exit__(self, *unused: object) -> None:
    self.close()

  def close(self) -> None:
    """Stops it for good; may be called again."""
    with self._lock:
      if self._closed:
        return
      self._closed = True
      if self._process is not None:
        self._process.close()
      self._folder.close()

  def _start(self, restore: str | None) -> None:
    if self._closed:
      raise base.StoreClosed('The Reverb server was closed.')
    if self.is_alive():
      raise ServerFailed(f'The Reverb server at {self.address} runs already.')
    if self._process is not None:
      self._process.close()
    self._folder.prepare()
    self._restore = restore
    config = {
      'port': self._port,
      'fixed': bool(self._wanted_port),
      'tables': self._tables,
      'checkpoints': str(self._folder.own),
      'restore': restore,
      'rewritten': str(self._folder.rewritten),
    }
    try:
      self._process = ServerProcess(self._python, config, self.log_path)
    except OSError as e:
      raise ServerFailed(
        f'The Reverb server cannot be started with {self._python} '
        f'({e.strerror}); name another Python by --reverb_python.'
      ) from e

  def _current(self) -> ServerProcess:
    process = self._process
    if process is None:
      raise ServerFailed('The Reverb server has not been started.')
    return process

  def _hear_port(self, process: ServerProcess, deadline: float) -> int:
    try:
      answer = process.hear(deadline)
    except TimeoutError:
      raise self._failed(process, 'does not come up') from None
    if answer is None:
      process.wait(max(0.0, deadline - time.monotonic()))
      raise self._failed(process, 'did not come up')
    if 'port' in answer:
      return answer['port']
    process.wait(None)
    raise _refusal(answer, self._port, self._restore, self.log_path)

  def _failed(self, process: ServerProcess, what: str) -> ServerFailed:
    return ServerFailed(
      f'The Reverb server at {self.address} (process {process.pid}) {what}: it '
      f'{process.how_it_ended()}'
    )


def _refusal(
  answer: Mapping[str, str], port: int, restore: str | None, log: pathlib.Path
) -> Exception:
  """Returns the exception for an error answered by `main.py`."""
  kind, error = answer['kind'], answer['error']
  if kind == 'port':
    return PortInUse(
      f'Port {port} is in use; give the Reverb server another, or 0 for any '
      'that is free.'
    )
  if kind == 'checkpoint':
    return base.CheckpointError(error)
  if restore:
    return base.CheckpointError(
      f'The replay checkpoint {restore} cannot be loaded ({error}); use an '
      'older one, or remove it to start with an empty replay.'
    )
  return ServerFailed(
    f'The Reverb server did not come up: {error}; its log is {log}.'
  )
