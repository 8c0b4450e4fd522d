"""Tests for server.py with real servers."""

import contextlib
import ipaddress
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from seedrl_jax.replay import base as replay
from seedrl_jax.replay.reverb.client import connection
from seedrl_jax.replay.reverb.server import server
from tests.patience import PATIENCE, wait_until

# Owns a server; prints its process number when it is ready.
_OWNER = """
import json, signal, sys
from seedrl_jax.replay.reverb.server import server
owned = server.ReverbServer(sys.argv[1], json.loads(sys.argv[2]))
if len(sys.argv) == 4:
  owned._wait_ready = lambda restore: None
owned.start()
print(owned._process.pid, flush=True)
signal.pause()
"""


def _ends(pidfd: int) -> bool:
  poll = select.poll()
  poll.register(pidfd, select.POLLIN)
  return bool(poll.poll(PATIENCE * 1000))


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


def test_clients_need_no_name_lookup():
  with server.ReverbServer(sys.executable, []) as unstarted:
    host = unstarted.address.rpartition(':')[0]
  assert ipaddress.ip_address(host).is_loopback


def test_sigterm_is_enough_to_stop_it(make_server, make_client, monkeypatch):
  monkeypatch.setattr(server, '_GRACE', PATIENCE)
  running = make_server()
  make_client(running.address).insert([1])
  assert running.is_alive() and not running.wait_end(0)
  # Reverb itself would share the port.
  other = make_server(port=running.port, start=False)
  with pytest.raises(server.ServerFailed, match=f'{running.port} is in use'):
    other.start()
  assert not other.is_alive()
  running.stop()
  assert running.wait_end() and not running.is_alive()
  assert 'was ended by SIGTERM' in str(running.failure())
  assert not connection.answers(running.address, timeout=0.1)


def test_a_kill_is_noticed_and_a_restart_is_empty_on_the_same_port(
  make_server, make_client, caplog
):
  running = make_server()
  assert f'--dport {running.port}' in caplog.text
  make_client(running.address).insert([1])
  address, pid = running.address, running._process.pid
  os.kill(pid, signal.SIGKILL)
  assert running.wait_end(PATIENCE)
  sentence = str(running.failure())
  assert address in sentence and 'SIGKILL' in sentence
  assert str(running.log_path) in sentence
  with _kept_from_others(running.port):
    running.start()
  assert (running.address, running._process.pid != pid) == (address, True)
  assert make_client(address).info().current_size == 0
  running.stop()
  # Elsewhere if its port was taken.
  with socket.create_server(('', running.port)):
    running.start()
  assert running.address != address
  assert connection.answers(running.address, PATIENCE)


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


def test_rules_that_reverb_refuses(make_server, rules):
  running = make_server(rules(max_size=0), start=False)
  with pytest.raises(server.ServerFailed, match='max_size'):
    running.start()


@pytest.fixture(name='mute')
def mute_fixture(tmp_path) -> str:
  """Returns an interpreter that prints nothing and ends with its input."""
  path = tmp_path / 'mute'
  # Keeps its output open as descriptor 3.
  path.write_text('#!/bin/sh\nexec 3>&1\nexec cat > /dev/null\n')
  path.chmod(0o755)
  return str(path)


def test_close_ends_a_start_and_is_for_good(make_server, mute, threads):
  running = make_server(python=mute, start=False)
  threads.start(running.start)
  wait_until(running.is_alive)
  running.close()
  running.close()
  (error,) = threads.join()
  assert isinstance(error, server.ServerFailed)
  assert 'did not come up' in str(error)
  assert not running.is_alive()
  assert not running.log_path.parent.exists()
  with pytest.raises(replay.StoreClosed):
    running.start()


def test_deadline_of_a_start(make_server, mute, monkeypatch):
  monkeypatch.setattr(server, '_START', 0.0)
  running = make_server(python=mute, start=False)
  with pytest.raises(
    server.ServerFailed, match=r'does not come up.*still runs'
  ):
    running.start()
