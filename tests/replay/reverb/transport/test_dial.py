"""Tests of connecting, and of leaving it; `test_call_connecting` has more."""

import socket
import threading
from collections.abc import Iterator

import pytest

from seedrl_jax.replay.reverb.transport import dial

# Only for tests that have already failed.
_PATIENCE = 300.0


@pytest.fixture(name='listener')
def listener_fixture() -> Iterator[socket.socket]:
  with socket.create_server(('127.0.0.1', 0)) as listener:
    listener.settimeout(_PATIENCE)
    yield listener


def _dial(place: tuple[str, int]) -> dial.Dial:
  return dial.Dial(place[0], str(place[1]))


def _assert_closed(accepted: socket.socket) -> None:
  with accepted:
    accepted.settimeout(_PATIENCE)
    assert accepted.recv(1) == b''


def test_connects_and_keeps_the_time_out(listener):
  with _dial(listener.getsockname()).connect(_PATIENCE) as connected:
    assert connected.gettimeout() == _PATIENCE
    accepted, _ = listener.accept()
    with accepted:
      accepted.sendall(b'there')
      assert connected.recv(5) == b'there'


def test_who_does_not_listen_is_told():
  with socket.socket() as bound:
    bound.bind(('127.0.0.1', 0))
    with pytest.raises(ConnectionRefusedError):
      _dial(bound.getsockname()).connect(_PATIENCE)


def test_cancelled_before_it_begins(listener):
  dialling = _dial(listener.getsockname())
  dialling.cancel()
  with pytest.raises(ConnectionAbortedError):
    dialling.connect(_PATIENCE)
  # What came of it all the same is closed.
  _assert_closed(listener.accept()[0])


@pytest.mark.parametrize('listens', [True, False])
def test_cancelled_as_it_ends(listens, listener, monkeypatch):
  """The result is there; who waits for it has not seen it yet."""
  ended = threading.Event()
  dialling = _dial(listener.getsockname())
  run = dialling._run

  def run_and_cancel(timeout: float) -> None:
    run(timeout)
    dialling.cancel()
    ended.set()

  class Condition(threading.Condition):
    def wait_for(self, predicate, timeout=None):
      # The lock is the other's meanwhile.
      self.release()
      assert ended.wait(_PATIENCE)
      self.acquire()
      return super().wait_for(predicate, timeout)

  monkeypatch.setattr(dialling, '_run', run_and_cancel)
  monkeypatch.setattr(dialling, '_changed', Condition())
  if not listens:
    listener.close()
  error = ConnectionAbortedError if listens else ConnectionRefusedError
  with pytest.raises(error):
    dialling.connect(_PATIENCE)
  if listens:
    _assert_closed(listener.accept()[0])
