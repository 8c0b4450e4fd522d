"""Reverb servers of runs, all in one process.

Importing Reverb takes most of the time of a server's start.
"""

import json
import os
import subprocess
import threading
from typing import Any

from seedrl_jax.replay.reverb.server import server
from tests.replay.reverb import shared_servers


class _Process:
  """Stands for the process of one server; see `subprocess.Popen`."""

  def __init__(self, factory: shared_servers.ServerFactory, **config: Any):
    self._factory = factory
    answer = {'kind': 'start', **factory.ask(start=config)}
    self._port = answer.get('port')
    self.pid = os.getpid()
    self.returncode = None if self._port else 1
    self._ended = threading.Event()
    readable, writable = os.pipe()
    self.stdout = os.fdopen(readable, 'rb')
    self.stdin = os.fdopen(writable, 'wb', buffering=0)
    self.stdin.write(json.dumps(answer).encode() + b'\n')

  def poll(self) -> int | None:
    return self.returncode

  def wait(self, timeout: float | None = None) -> None:
    if self.returncode is None and not self._ended.wait(timeout):
      raise subprocess.TimeoutExpired('reverb', timeout or 0.0)

  def terminate(self) -> None:
    if self.returncode is None:
      self._factory.ask(stop=self._port)
      self.returncode = 0
      self._ended.set()

  kill = terminate


class ReverbServer(server.ReverbServer):
  """A server of a run in the process of `factory`."""

  def __init__(
    self, factory: shared_servers.ServerFactory, *args: Any, **kwargs: Any
  ):
    super().__init__(*args, **kwargs)
    self._factory = factory

  def _launch(self, restore: str | None) -> Any:
    return _Process(
      self._factory,
      port=self.port,
      fixed=bool(self._wanted_port),
      tables=self._tables,
      checkpoints=str(self._output),
      restore=restore,
      rewritten=str(self._rewritten),
    )
