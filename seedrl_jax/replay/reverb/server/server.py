"""The owner's side of a Reverb server: starts, watches, restarts, stops it.

Called by the store (`store.py`) and by `launch/reverb_server.py`. The server
is a process in an environment of its own (`environment.py`).
"""

import pathlib
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from absl import logging

from seedrl_jax.replay import base
from seedrl_jax.replay.reverb.client import errors
from seedrl_jax.replay.reverb.server import checkpoint_files
from seedrl_jax.replay.reverb.server.server_process import ServerProcess

# Seconds to wait for a server to be ready: imports take 2 to 10 of them.
_START = 120.0
# Bytes of a checkpoint that a slow machine loads in a second.
_LOAD_RATE = 10e6
_INFO = '/deepmind.reverb.ReverbService/ServerInfo'


class ServerFailed(errors.ReverbError):
  """The server did not start, or has ended by itself."""


class PortInUse(ServerFailed):
  """Somebody else listens on the port that was asked for."""


def exposure_warning(port: int) -> str:
  """Returns what whoever starts a server must know, with a remedy."""
  return (
    f'Reverb listens on port {port} of every network interface, without '
    'authentication, and cannot be told otherwise; unless this network is '
    'trusted, keep others out: sudo iptables -I INPUT -p tcp '
    f'--dport {port} ! -i lo -j DROP'
  )


def answers(address: str, timeout: float) -> bool:
  """Whether a Reverb server answers at `address` within `timeout` seconds."""
  options = [
    # Its answer names every table and its signature.
    ('grpc.max_receive_message_length', -1),
    # Or a server that came up after a refusal would wait for a second.
    ('grpc.initial_reconnect_backoff_ms', 100),
    ('grpc.enable_http_proxy', 0),
  ]
  with grpc.insecure_channel(address, options) as channel:
    # Without serializers, bytes are sent and received as they are.
    try:
      channel.unary_unary(_INFO)(b'', timeout=timeout, wait_for_ready=True)
    except grpc.RpcError:
      return False
  return True


class ReverbServer:
  """A server that this process owns; any thread may call it.

  It ends with `close`, and when this process ends, however that happens.

  Example:
    with ReverbServer(environment.ensure(), tables) as server:
      server.start()
      server.wait_ready()
  """

  def __init__(
    self,
    python: str,
    tables: Sequence[Mapping[str, Any]],
    checkpoint_dir: str | None = None,
    port: int = 0,
    keep_checkpoints: int | None = None,
  ):
    """Starts nothing yet.

    Args:
      python: an interpreter that has Reverb (`environment.ensure`).
      tables: rules, as `main.py` takes them (`tables.py`).
      checkpoint_dir: folder for checkpoints and the log, made if absent; one
        server at a time. None: a temporary one, gone after `close`.
      port: to listen on; 0: any that is free.
      keep_checkpoints: of those in its folder, the newest that each start
        leaves there; None: all.
    """
    self._python = python
    self._tables = list(tables)
    self._wanted_port = port
    self._port = port
    self._keep = keep_checkpoints
    self._lock = threading.RLock()
    self._process: ServerProcess | None = None
    self._closed = False
    self._restore: str | None = None
    self._scratch: tempfile.TemporaryDirectory | None = None
    if checkpoint_dir is None:
      self._scratch = tempfile.TemporaryDirectory(prefix='seedrl-reverb-')
      checkpoint_dir = self._scratch.name
    self._folder = pathlib.Path(checkpoint_dir).absolute()

  def __enter__(self) -> 'ReverbServer':
    return self

  def __exit__(self, *unused: object) -> None:
    self.close()

  @property
  def address(self) -> str:
    """Where this machine's clients find it; known from `wait_ready` on."""
    return f'localhost:{self._port}'

  @property
  def port(self) -> int:
    """The port; known from `wait_ready` on."""
    return self._port

  @property
  def pid(self) -> int | None:
    """The number of its process, None before `start`."""
    process = self._process
    return process.pid if process else None

  @property
  def log_path(self) -> pathlib.Path:
    """The file that has what the server says."""
    return self._folder / 'server.log'

  def checkpoints(self) -> list[pathlib.Path]:
    """Returns the checkpoints in its folder, newest first.

    What a server that has ended wrote and nobody moved is there too.
    """
    with self._lock:
      if not self.is_alive():
        for path in checkpoint_files.newest_first(self._own):
          checkpoint_files.keep(path, self._folder / path.name)
      return checkpoint_files.newest_first(self._folder)

  def start(self, restore: str | None = None) -> None:
    """Starts the process; `wait_ready` tells how that went.

    Args:
      restore: a checkpoint to begin with, under the rules of now; None: the
        tables are empty.

    Raises:
      CheckpointError: where `restore` is missing, damaged or of other tables.
      ServerFailed: where the process cannot be started.
      StoreClosed: after `close`.
    """
    with self._lock:
      self._start(restore, self._port)

  def wait_ready(self, timeout: float | None = None) -> None:
    """Waits until the server answers.

    Args:
      timeout: seconds; None: what a slow machine needs for its checkpoint.

    Raises:
      CheckpointError: where the server cannot load the checkpoint.
      PortInUse: where another listens on the port that was asked for.
      ServerFailed: where it ended, was stopped, or does not answer in time.
    """
    if timeout is None:
      timeout = _START
      if self._restore:
        timeout += checkpoint_files.num_bytes(self._restore) / _LOAD_RATE
    deadline = time.monotonic() + timeout
    while not self._hear_port(deadline):
      pass
    process = self._current()
    # In short pieces, so that the end of the process is noticed.
    while not answers(self.address, timeout=1.0):
      if process.exit_code is not None or time.monotonic() > deadline:
        raise self._failed(process, 'does not answer')
    self._remove_restored()
    logging.warning('%s', exposure_warning(self._port))

  def is_alive(self) -> bool:
    """Whether the process runs."""
    process = self._process
    return process is not None and process.exit_code is None

  def wait_end(self, timeout: float | None = None) -> bool:
    """Waits until the process has ended, by itself or by `stop`.

    Returns:
      Whether it has within `timeout` seconds.
    """
    return self._current().wait(timeout)

  def how_it_ended(self) -> str:
    """Returns a sentence on how the process ended, with its last lines."""
    return str(self._failed(self._current(), 'ended'))

  def restart(self, restore: str | None = None) -> None:
    """Starts it again, on the same port unless that has been taken since.

    Arguments and errors are those of `start`; `wait_ready` comes after it.
    """
    with self._lock:
      self.stop()
      self._start(restore, self._port)

  def stop(self) -> None:
    """Ends the process; what is in the tables is lost."""
    with self._lock:
      if self._process is not None:
        self._process.stop()

  def close(self) -> None:
    """Stops it for good; further calls do nothing."""
    with self._lock:
      if self._closed:
        return
      self._closed = True
      if self._process is not None:
        self._process.close()
      self._remove_restored()
      if self._scratch is not None:
        self._scratch.cleanup()

  def _start(self, restore: str | None, port: int) -> None:
    if self._closed:
      raise base.StoreClosed('The Reverb server was closed.')
    if self.is_alive():
      raise ServerFailed(f'The Reverb server at {self.address} runs already.')
    if self._process is not None:
      self._process.close()
    self.checkpoints()
    if self._keep is not None:
      checkpoint_files.prune(self._folder, self._keep)
    shutil.rmtree(self._own, ignore_errors=True)
    self._own.mkdir(parents=True)
    rewritten = self._rewrite(restore)
    config = {
      'port': port,
      'tables': self._tables,
      'checkpoints': str(self._own),
      'restore': rewritten,
    }
    try:
      self._process = ServerProcess(self._python, config, self.log_path)
    except OSError as e:
      raise ServerFailed(
        f'The Reverb server cannot be started with {self._python} '
        f'({e.strerror}); name another Python by --reverb_python.'
      ) from e

  def _rewrite(self, restore: str | None) -> str | None:
    """Puts a copy of a checkpoint under this server's rules."""
    self._restore = restore
    self._remove_restored()
    if restore is None:
      return None
    target = self._restored / 'checkpoint'
    checkpoint_files.rewrite(restore, self._tables, target)
    return str(target)

  @property
  def _restored(self) -> pathlib.Path:
    return self._folder / '.restored'

  def _remove_restored(self) -> None:
    shutil.rmtree(self._restored, ignore_errors=True)

  @property
  def _own(self) -> pathlib.Path:
    # The server writes here, and deletes all that is here but the newest.
    return self._folder / '.server'

  def _current(self) -> ServerProcess:
    process = self._process
    if process is None:
      raise ServerFailed('The Reverb server has not been started.')
    return process

  def _hear_port(self, deadline: float) -> bool:
    """Learns the port; returns false where it starts anew on another."""
    process = self._current()
    try:
      answer = process.hear(deadline)
    except TimeoutError:
      raise self._failed(process, 'does not come up') from None
    if answer is None:
      process.wait(max(0.0, deadline - time.monotonic()))
      raise self._failed(process, 'did not come up')
    if 'port' in answer:
      self._port = answer['port']
      return True
    process.wait(None)
    if answer['kind'] == 'port':
      self._start_elsewhere()
      return False
    if self._restore:
      raise base.CheckpointError(
        f'The replay checkpoint {self._restore} cannot be loaded '
        f'({answer["error"]}); use an older one, or remove it to start with an '
        'empty replay.'
      )
    raise ServerFailed(
      f'The Reverb server did not come up: {answer["error"]}; its log is '
      f'{self.log_path}.'
    )

  def _start_elsewhere(self) -> None:
    if self._wanted_port:
      raise PortInUse(
        f'Port {self._wanted_port} is in use; give the Reverb server another, '
        'or 0 for any that is free.'
      )
    with self._lock:
      self._start(self._restore, 0)

  def _failed(self, process: ServerProcess, what: str) -> ServerFailed:
    return ServerFailed(
      f'The Reverb server at {self.address} (process {process.pid}) {what}: it '
      f'{process.how_it_ended()}'
    )
