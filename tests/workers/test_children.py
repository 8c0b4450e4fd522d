"""Tests of processes that are started again."""

import os
import signal
import subprocess
from multiprocessing import connection

import pytest

from seedrl_jax.workers import children
from tests.patience import PATIENCE, wait_until

# Says that it is ready, writes a line and dies.
_PROGRAM = """
import json, os, sys
info = json.loads(os.environ['SEEDRL_CHILD'])
os.eventfd_write(info['ready'], 1)
print('The worker is broken.', flush=True)
sys.exit(7)
"""


@pytest.fixture(name='child')
def child_fixture(tmp_path, monkeypatch):
  """Starts a child that dies at once, without pauses."""
  command = [children.sys.executable, '-c', _PROGRAM]
  monkeypatch.setattr(children, '_command', lambda processors: command)
  monkeypatch.setattr(children, '_FIRST_PAUSE', 0.0)
  child = children.Child(
    'Worker 1',
    lambda deaths: {},
    (),
    tmp_path / 'worker.log',
    (),
    lambda: None,
    PATIENCE,
  )
  yield child
  children.stop([child])


def test_a_child_that_dies_at_once_is_not_restarted_forever(child, tmp_path):
  wait_until(lambda: child.failure)
  assert child.failure == (
    'Worker 1 has died 6 times soon after its start: The worker is broken. '
    f'(all in {tmp_path / "worker.log"}).'
  )
  assert (tmp_path / 'worker.log').read_text().count('broken') == 6


def test_a_child_that_had_settled_is_started_again(child, monkeypatch):
  monkeypatch.setattr(children, '_SETTLED_SECONDS', 0.0)
  wait_until(lambda: child.deaths > 20)
  assert not child.failure


@pytest.mark.parametrize('is_stopped', [True, False])
def test_a_process_without_progress_has_hung(is_stopped):
  # Without a line to read, it waits.
  child = subprocess.Popen(
    ['cat'], stdin=subprocess.PIPE, start_new_session=True
  )
  if is_stopped:
    os.kill(child.pid, signal.SIGSTOP)
  assert not children.wait_for_end(child, 0.1)
  assert child.returncode == -signal.SIGKILL
  child.stdin.close()


@pytest.mark.parametrize('command', [['cat'], ['sh', '-c', 'cat; true']])
def test_a_process_has_not_hung_if_it_or_its_children_work(
  command, monkeypatch
):
  child = subprocess.Popen(
    command,
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    start_new_session=True,
  )
  wait = connection.wait
  rest = [*range(3 * children._MOST_LOOKS)]

  def work(events, timeout):
    """Lets the child copy a line before each look, and then end."""
    if not rest:
      child.stdin.close()
      return wait(events, PATIENCE)
    rest.pop()
    child.stdin.write(b'.\n')
    child.stdin.flush()
    assert child.stdout.readline() == b'.\n'
    return []

  monkeypatch.setattr(connection, 'wait', work)
  assert children.wait_for_end(child, 1.0)
  assert child.returncode == 0
  child.stdout.close()
