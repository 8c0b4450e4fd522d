"""Reverb servers for tests, all in one process."""

import json
import pathlib
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from seedrl_jax.replay import base
from seedrl_jax.replay.reverb.server import server

_MANY = pathlib.Path(__file__).with_name('many_servers.py')
_MAIN = pathlib.Path(server.__file__).with_name('main.py')


class ServerFactory:
  def __init__(self, python: str):
    self._popen = subprocess.Popen(
      [python, str(_MANY), str(_MAIN)],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL,
      text=True,
    )
    self._lock = threading.Lock()

  def ask(self, **request: Any) -> dict[str, Any]:
    with self._lock:
      assert self._popen.stdin is not None and self._popen.stdout is not None
      self._popen.stdin.write(json.dumps(request) + '\n')
      self._popen.stdin.flush()
      return json.loads(self._popen.stdout.readline())

  def close(self) -> None:
    self._popen.kill()
    self._popen.wait()


class SharedServer:
  """A stand-in for `server.ReverbServer`, in the shared process."""

  def __init__(self, factory: ServerFactory, tables: Sequence[Mapping]):
    self._factory = factory
    self._tables = list(tables)
    self._folder = tempfile.TemporaryDirectory()
    self._starts = 0
    self._port = 0
    self._alive = False

  @property
  def starts(self) -> int:
    return self._starts

  @property
  def address(self) -> str:
    return f'127.0.0.1:{self._port}'

  def start(self, restore: str | None = None) -> None:
    if self._alive:
      self.kill()
    folder = pathlib.Path(self._folder.name, str(self._starts))
    self._starts += 1
    output = folder / 'own'
    output.mkdir(parents=True)
    answer = self._factory.ask(
      start={
        'port': 0,
        'fixed': True,
        'tables': self._tables,
        'checkpoints': str(output),
        'restore': restore,
        'rewritten': str(folder / 'restored'),
      }
    )
    if 'error' in answer:
      raise base.CheckpointError(answer['error'])
    self._port = answer['port']
    self._alive = True

  def is_alive(self) -> bool:
    return self._alive

  def wait_end(self, timeout: float | None = None) -> bool:
    del timeout
    return not self._alive

  def failure(self) -> server.ServerFailed:
    return server.ServerFailed('The shared server was lost.')

  def kill(self) -> None:
    self._alive = False
    self._factory.ask(stop=self._port)

  def close(self) -> None:
    if self._alive:
      self.kill()
    shutil.rmtree(self._folder.name, ignore_errors=True)
