"""Calls, and the loss and recovery of a server."""

import socket
import threading

import grpc
import pytest

from seedrl_jax.replay import base
from seedrl_jax.replay.reverb import errors
from seedrl_jax.replay.reverb.client import connection as connection_lib
from seedrl_jax.replay.reverb.proto import reverb_pb2
from tests.patience import PATIENCE
from tests.replay.reverb import fake_server

_CODE = grpc.StatusCode


@pytest.fixture(name='connect')
def connect_fixture(server):
  connections = []

  def connect(address=None, patience=PATIENCE, **kwargs):
    connection = connection_lib.Connection(
      address or server.address, patience, **kwargs
    )
    connections.append(connection)
    return connection

  yield connect
  for connection in connections:
    connection.close()


class _Failure(grpc.RpcError):
  """A failed call."""

  def __init__(self, code: grpc.StatusCode, details: str):
    super().__init__()
    self.code, self.details = lambda: code, lambda: details


def _raises(code: grpc.StatusCode):
  def answer(request):
    raise fake_server.Abort(code)

  return answer


def test_call_is_made_again_after_a_loss(server, connect):
  failures = iter([_CODE.UNAVAILABLE, _CODE.CANCELLED])

  def fail_twice(request):
    if code := next(failures, None):
      raise fake_server.Abort(code)
    return reverb_pb2.Empty()

  server.on_call['MutatePriorities'] = fail_twice
  connection = connect()
  connection.mutate('t', {})
  assert connection.generation == 2
  assert [name for name, _ in server.calls].count('MutatePriorities') == 3


def test_on_lost_restarts_the_server_elsewhere(server, connect):
  others = []

  def restart():
    others.append(fake_server.FakeServer().start())

  connection = connect(
    lambda: (others or [server])[-1].address, on_lost=restart
  )
  connection.server_info()
  server.stop()
  connection.server_info()
  assert len(others) == 1
  assert connection.address == others[0].address != server.address
  others[0].stop()


def test_one_thread_recovers_for_all(server, connect, threads):
  losses = []
  connection = connect(on_lost=lambda: losses.append(1))
  for _ in range(5):
    threads.start(lambda: connection.recover(0))
  assert threads.join() == []
  assert (losses, connection.generation) == ([1], 1)


def test_server_that_never_comes_back(server, connect):
  server.stop()
  connection = connect(patience=0.0)
  for _ in range(2):
    with pytest.raises(errors.ServerLost, match='tried for 0 s') as raised:
      connection.server_info()
    assert server.address in str(raised.value)


def test_server_that_is_lost_again_and_again_is_given_up(
  server, connect, monkeypatch
):
  # A late answer is not a failure.
  monkeypatch.setattr(connection_lib, '_ATTEMPT', PATIENCE)
  server.on_call['MutatePriorities'] = _raises(_CODE.UNAVAILABLE)
  with pytest.raises(errors.ServerLost, match='again and again'):
    connect(patience=0.2).mutate('t', {})


class _Stream(connection_lib.TableStream):
  """Sends one empty message."""

  def __init__(self, link):
    super().__init__(link, 'sample', 't', threading.Lock())
    self.failures = []

  def _begin(self):
    pass

  def _messages(self, ended):
    yield b''
    ended.wait(PATIENCE)

  def _take(self, response):
    pass

  def _fail(self, error):
    self.failures.append(error)


def test_streams_that_never_begin_are_given_up(server, connect, monkeypatch):
  # Another call works, so the server is found each time.
  monkeypatch.setattr(connection_lib, '_ATTEMPT', PATIENCE)
  server.on_sample = _raises(_CODE.UNAVAILABLE)
  stream = _Stream(connect(patience=0.2))
  stream._run()
  (failure,) = stream.failures
  assert isinstance(failure, errors.ServerLost)
  assert 'again and again, as told' in str(failure)


def test_says_why_the_server_refused(server, connect):
  def refuse(request):
    raise fake_server.Abort(_CODE.RESOURCE_EXHAUSTED, 'größer als\n100% ✓')

  server.on_sample = refuse
  stream = _Stream(connect())
  stream._run()
  (failure,) = stream.failures
  assert isinstance(failure, errors.RequestRefused)
  assert 'RESOURCE_EXHAUSTED (größer als 100% ✓)' in str(failure)


def test_a_server_that_stops_while_a_stream_begins_is_lost(connect):
  # HTTP/2 frames: SETTINGS, and GOAWAY that no stream was processed.
  settings = b'\0\0\0\4' + bytes(5)
  goaway = b'\0\0\x08\7' + bytes(5 + 8)
  lost = threading.Event()
  with socket.create_server(('127.0.0.1', 0)) as listener:
    address = f'127.0.0.1:{listener.getsockname()[1]}'
    stream = _Stream(connect(address, patience=0.0, on_lost=lost.set))
    stream._thread.start()
    accepted, _ = listener.accept()
    accepted.sendall(settings)
    received = b''
    while b'SampleStream' not in received:
      received += accepted.recv(1 << 16)
    accepted.sendall(goaway)
    assert lost.wait(PATIENCE)
  accepted.close()
  stream.cancel()
  stream.join()


def test_failure_of_on_lost_ends_the_connection(server, connect):
  def fail():
    raise OSError('no disk')

  server.stop()
  connection = connect(on_lost=fail)
  for _ in range(2):
    with pytest.raises(OSError, match='no disk'):
      connection.server_info()


def test_close_ends_a_call_under_way(server, connect, threads):
  entered, gate = threading.Event(), threading.Semaphore(0)

  def answer(request):
    entered.set()
    gate.acquire(timeout=PATIENCE)
    return reverb_pb2.Empty()

  server.on_call['MutatePriorities'] = answer
  connection = connect()
  threads.start(lambda: connection.mutate('t', {}))
  assert entered.wait(PATIENCE)
  connection.close()
  assert [type(e) for e in threads.join()] == [base.StoreClosed]
  gate.release()
  with pytest.raises(base.StoreClosed):
    connection.mutate('t', {})


def test_close_ends_a_search_for_the_server(server, connect, threads):
  searching = threading.Event()
  server.stop()
  connection = connect(on_lost=searching.set)
  threads.start(connection.server_info)
  assert searching.wait(PATIENCE)
  connection.close()
  assert [type(e) for e in threads.join()] == [base.StoreClosed]


@pytest.mark.parametrize(
  ('code', 'details', 'lost'),
  [
    (_CODE.UNAVAILABLE, '', True),
    (_CODE.UNKNOWN, 'Stream removed', True),
    (_CODE.CANCELLED, 'CANCELLED', True),
    (_CODE.UNKNOWN, 'a bug', False),
    (_CODE.NOT_FOUND, '', False),
  ],
)
def test_which_failures_are_losses(code, details, lost):
  assert errors.is_lost(_Failure(code, details)) == lost
