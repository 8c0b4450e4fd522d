"""Tests of processes that are started again."""

import pytest

from seedrl_jax.workers import children
from tests.patience import wait_until

# Says that it is ready, writes a line and dies.
_PROGRAM = """
import json, os, socket, sys
told = json.loads(os.environ['SEEDRL_CHILD'])
socket.socket(fileno=told['link']).send(b'.')
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
    'worker-1', dict, (), tmp_path / 'worker.log', (), lambda: None
  )
  yield child
  children.stop([child])


def test_a_child_that_dies_at_once_is_not_started_for_ever(child, tmp_path):
  wait_until(lambda: child.failure)
  assert child.failure == (
    'worker-1 has died 6 times soon after its start: The worker is broken. '
    f'(all in {tmp_path / "worker.log"}).'
  )
  assert (tmp_path / 'worker.log').read_text().count('broken') == 6


def test_a_child_that_had_settled_is_started_again(child, monkeypatch):
  monkeypatch.setattr(children, '_SETTLED_SECONDS', 0.0)
  wait_until(lambda: child.deaths > 20)
  assert not child.failure
