"""Tests for seedrl_jax/replay/reverb/streams.py, with a gRPC server."""

import concurrent.futures
import contextlib
import queue
import random
import socket
import threading

import grpc
import pytest

from seedrl_jax.replay.reverb import errors, streams
from tests.patience import PATIENCE

_CODE = grpc.StatusCode
_DETAILS = 'größer als 100% erlaubt ✓\nzweite Zeile'


def _refuse(requests, context):
  context.abort(_CODE.RESOURCE_EXHAUSTED, _DETAILS)


@pytest.fixture(name='server')
def server_fixture():
  pool = concurrent.futures.ThreadPoolExecutor(8)
  options = [('grpc.max_receive_message_length', -1)]
  server = grpc.server(pool, options=options)
  methods = {
    'Echo': lambda requests, context: requests,
    'Refuse': _refuse,
    'Leave': lambda requests, context: iter(()),
  }
  handlers = {
    name: grpc.stream_stream_rpc_method_handler(function)
    for name, function in methods.items()
  }
  server.add_generic_rpc_handlers([
    grpc.method_handlers_generic_handler('test.Service', handlers)
  ])
  server.port = server.add_insecure_port('127.0.0.1:0')
  server.start()
  yield server
  server.stop(None).wait()


class _Exchange:
  """A stream to a method of the server, and what it received."""

  def __init__(self, server, method: str):
    address = f'127.0.0.1:{server.port}'
    self.stream = streams.Stream(address, f'/test.Service/{method}')
    self.received: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    self.ends = 0
    self._ended = threading.Event()

  def run(self, messages, take=None) -> None:
    self.stream.exchange(
      self._until_end(messages), take or self._take, self._end
    )

  def _take(self, response: bytes) -> None:
    self.received.put(response)

  def _until_end(self, messages):
    yield from messages
    assert self._ended.wait(PATIENCE)

  def _end(self) -> None:
    self.ends += 1
    self._ended.set()


@pytest.fixture(name='begin')
def begin_fixture(server):
  with contextlib.ExitStack() as stack:

    def begin(method: str) -> _Exchange:
      exchange = _Exchange(server, method)
      stack.callback(exchange.stream.close)
      return exchange

    yield begin


@pytest.mark.parametrize('size', [0, 1, 65_531, 5_000_000])
def test_messages_come_back_whole(begin, threads, size):
  echo = begin('Echo')
  content = random.Random(size).randbytes(size)
  threads.start(lambda: echo.run([content] * 20))
  for _ in range(20):
    assert echo.received.get(timeout=PATIENCE) == content
  echo.stream.cancel()
  (error,) = threads.join()
  assert error.code() == _CODE.CANCELLED
  assert echo.ends == 1


def test_says_why_the_server_refused_while_it_sends(begin):
  refused = begin('Refuse')
  with pytest.raises(grpc.RpcError) as raised:
    refused.run(bytes(1 << 25) for _ in range(100))
  assert raised.value.code() == _CODE.RESOURCE_EXHAUSTED
  assert raised.value.details() == _DETAILS


def test_a_server_that_ends_the_stream_is_no_failure(begin):
  left = begin('Leave')
  left.run([])
  assert left.ends == 1


def test_a_server_that_stops_is_lost(begin, server, threads):
  echo = begin('Echo')
  threads.start(lambda: echo.run([b'there']))
  assert echo.received.get(timeout=PATIENCE) == b'there'
  stopped = server.stop(None)
  (error,) = threads.join()
  assert errors.is_lost(error)
  assert stopped.wait(PATIENCE)


def test_a_server_that_stops_while_a_stream_begins_is_lost(threads):
  # HTTP/2 frames: SETTINGS, and GOAWAY that no stream was processed.
  settings = b'\0\0\0\4' + bytes(5)
  goaway = b'\0\0\x08\7' + bytes(5 + 8)
  ended = threading.Event()

  def messages():
    # After GOAWAY; a wrong program has called again by now.
    ended.wait(0.5)
    yield b'a'

  with socket.create_server(('127.0.0.1', 0)) as listener:
    address = f'127.0.0.1:{listener.getsockname()[1]}'
    stream = streams.Stream(address, '/test.Service/Echo')
    threads.start(
      lambda: stream.exchange(messages(), lambda _: None, ended.set)
    )
    connection, _ = listener.accept()
    connection.sendall(settings)
    received = b''
    while b'/test.Service/Echo' not in received:
      received += connection.recv(1 << 16)
    connection.sendall(goaway)
    ended.wait(1.0)
  connection.close()
  (error,) = threads.join()
  assert errors.is_lost(error)
  stream.close()


def test_failures_of_messages_and_of_take_are_raised(begin):
  def messages():
    yield b'a'
    raise OSError('no more')

  with pytest.raises(OSError, match='no more'):
    begin('Echo').run(messages())

  def take(response):
    raise OSError(bytes(response).decode())

  with pytest.raises(OSError, match='a'):
    begin('Echo').run([b'a'], take)


def test_a_stream_that_was_cancelled_before_ends_at_once(begin):
  echo = begin('Echo')
  echo.stream.cancel()
  with pytest.raises(grpc.RpcError) as raised:
    echo.run([b'a'])
  assert raised.value.code() == _CODE.CANCELLED
