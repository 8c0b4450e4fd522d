"""Tests for server.py with real servers."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from seedrl_jax.replay import base as replay
from seedrl_jax.replay.reverb.server import server

# Owns a server; prints its process number when it is ready.
_OWNER = """
import json, signal, sys
from seedrl_jax.replay.reverb.server import server
owned = server.ReverbServer(sys.argv[1], json.loads(sys.argv[2]))
owned.start()
if len(sys.argv) < 4:
  owned.wait_ready()
print(owned.pid, flush=True)
signal.pause()
"""

_PATIENCE = 300.0


def _ends(pidfd: int) -> bool:
  poll = select.poll()
  poll.register(pidfd, select.POLLIN)
  return bool(poll.poll(_PATIENCE * 1000))


@contextlib.contextmanager
def _kept_from_others(port: int) -> Iterator[None]:
  """Reserves a port for those who ask for its number."""
  with socket.socket() as holder:
    # It does not listen, so others with this option may.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(('', port))
    yield


@pytest.mark.parametrize('when', ['serving', 'starting'])
def test_does_not_outlive_its_killed_owner(server_python, rules, when):
  arguments = [server_python, json.dumps([rules()])]
  with subprocess.Popen(
    [sys.executable, '-c', _OWNER, *arguments, *([when] * (when != 'serving'))],
    stdout=subprocess.PIPE,
  ) as owner:
    pidfd = os.pidfd_open(int(owner.stdout.readline()))
    owner.kill()
  try:
    assert _ends(pidfd)
  finally:
    os.close(pidfd)


def test_sigterm_is_enough_to_stop_it(make_server, make_client, monkeypatch):
  monkeypatch.setattr(server, '_GRACE', _PATIENCE)
  running = make_server()
  make_client(running.address).insert([1])
  assert running.is_alive()
  running.stop()
  assert not running.is_alive()
  assert 'was ended by SIGTERM' in running.how_it_ended()
  assert not server.answers(running.address, timeout=0.1)


def test_a_kill_is_noticed_and_told(make_server):
  running = make_server()
  assert not running.wait_end(0)
  os.kill(running.pid, signal.SIGKILL)
  assert running.wait_end(_PATIENCE)
  assert not running.is_alive()
  sentence = running.how_it_ended()
  assert running.address in sentence and 'SIGKILL' in sentence
  assert str(running.log_path) in sentence


def test_restart_is_on_the_same_port_and_empty(make_server, make_client):
  running = make_server()
  make_client(running.address).insert([1])
  address, pid = running.address, running.pid
  running.stop()
  with _kept_from_others(running.port):
    running.restart()
    running.wait_ready(_PATIENCE)
  assert (running.address, running.pid != pid) == (address, True)
  assert make_client(address).info().current_size == 0


def test_restart_goes_elsewhere_where_its_port_was_taken(make_server):
  running = make_server()
  port = running.port
  running.stop()
  with socket.create_server(('', port)):
    running.restart()
    running.wait_ready(_PATIENCE)
  assert running.port != port
  assert server.answers(running.address, _PATIENCE)


def test_port_in_use_by_another_reverb(make_server):
  # Reverb itself would share it.
  first = make_server()
  second = make_server(port=first.port, start=False)
  second.start()
  with pytest.raises(server.PortInUse, match=f'Port {first.port} is in use'):
    second.wait_ready(_PATIENCE)
  assert not second.is_alive()


@pytest.mark.parametrize(
  ('python', 'words'),
  [
    ('/no/such/python', '/no/such/python .*--reverb_python'),
    (sys.executable, "did not come up: No module named 'reverb'"),
    ('/bin/false', 'ended with exit code 1'),
  ],
)
def test_interpreter_that_will_not_do(make_server, python, words):
  running = make_server(python=python, start=False)
  with pytest.raises(server.ServerFailed, match=words):
    running.start()
    running.wait_ready(_PATIENCE)


def test_rules_that_reverb_refuses(make_server, rules):
  running = make_server(rules(max_size=0), start=False)
  running.start()
  with pytest.raises(server.ServerFailed, match='max_size'):
    running.wait_ready(_PATIENCE)


@pytest.fixture(name='mute')
def mute_fixture(tmp_path) -> str:
  """Returns an interpreter that prints nothing and ends with its input."""
  path = tmp_path / 'mute'
  # Keeps its output open as descriptor 3.
  path.write_text('#!/bin/sh\nexec 3>&1\nexec cat > /dev/null\n')
  path.chmod(0o755)
  return str(path)


def test_stop_ends_a_wait_for_ready(make_server, mute):
  running = make_server(python=mute, start=False)
  running.start()
  errors = []

  def wait():
    try:
      running.wait_ready(_PATIENCE)
    except server.ServerFailed as e:
      errors.append(str(e))

  waiter = threading.Thread(target=wait)
  waiter.start()
  running.stop()
  waiter.join(_PATIENCE)
  assert not waiter.is_alive()
  assert len(errors) == 1 and 'did not come up' in errors[0]


def test_deadline_of_ready(make_server, mute):
  running = make_server(python=mute, start=False)
  running.start()
  with pytest.raises(
    server.ServerFailed, match=r'does not come up.*still runs'
  ):
    running.wait_ready(0.0)


def test_a_server_that_closes_its_output_is_not_waited_for(
  make_server, tmp_path
):
  path = tmp_path / 'closed'
  path.write_text('#!/bin/sh\nexec cat > /dev/null\n')
  path.chmod(0o755)
  running = make_server(python=str(path), start=False)
  running.start()
  process = running._current()
  assert process.hear(time.monotonic() + _PATIENCE) is None
  with pytest.raises(server.ServerFailed, match=r'did not come up.*still runs'):
    running.wait_ready(0.0)


def test_a_wait_without_end_looks_for_signals(make_server, mute, monkeypatch):
  running = make_server(python=mute, start=False)
  running.start()
  waits = []

  def readable(descriptor, timeout):
    waits.append(timeout)
    return len(waits) == 3

  # Like a signal that the system call misses.
  with monkeypatch.context() as patch:
    patch.setattr(server, '_readable', readable)
    assert running.wait_end()
  assert max(waits) <= 1.0


def test_close_is_for_good(make_server):
  running = make_server(start=False)
  running.start()
  with pytest.raises(server.ServerFailed, match='runs already'):
    running.start()
  running.close()
  running.close()
  assert not running.is_alive()
  assert not running.log_path.parent.exists()
  with pytest.raises(replay.StoreClosed):
    running.start()


def test_before_start(make_server):
  running = make_server(start=False)
  assert running.pid is None and not running.is_alive()
  with pytest.raises(server.ServerFailed, match='not been started'):
    running.wait_ready()


def test_says_that_everybody_may_connect(make_server, caplog):
  running = make_server()
  assert server.exposure_warning(running.port) in caplog.messages
  assert f'--dport {running.port}' in caplog.text
