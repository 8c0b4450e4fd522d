"""Tests of every transport with a gRPC server."""

import concurrent.futures
import contextlib
import random

import grpc
import pytest

from seedrl_jax.replay.reverb import transport
from seedrl_jax.replay.reverb.client import errors

_PATIENCE = 300.0
_CODE = grpc.StatusCode
_DETAILS = 'größer als 100% erlaubt ✓\nzweite Zeile'


def _echo(requests, context):
  yield from requests


def _refuse(requests, context):
  context.abort(_CODE.RESOURCE_EXHAUSTED, _DETAILS)


def _leave(requests, context):
  return iter(())


@pytest.fixture(name='server')
def server_fixture():
  pool = concurrent.futures.ThreadPoolExecutor(8)
  options = [('grpc.max_receive_message_length', -1)]
  server = grpc.server(pool, options=options)
  methods = {
    'Echo': _echo,
    'Refuse': _refuse,
    'Leave': _leave,
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


@pytest.fixture(name='begin', params=['http2', 'grpc'])
def begin_fixture(server, request, monkeypatch):
  monkeypatch.setenv('SEEDRL_REVERB_TRANSPORT', request.param)
  with contextlib.ExitStack() as stack:

    def begin(method: str) -> transport.Stream:
      address = f'127.0.0.1:{server.port}'
      call = transport.make_stream(address, f'/test.Service/{method}')
      stack.callback(call.close)
      call.begin(_PATIENCE)
      stack.callback(call.cancel)
      return call

    yield begin


def _bytes(size: int) -> bytes:
  return random.Random(size).randbytes(size)


def _error(call: transport.Stream) -> grpc.RpcError:
  with pytest.raises(grpc.RpcError) as raised:
    call.receive()
  return raised.value


# Around a frame, the first window, and far beyond both.
_SIZES = [0, 1, 16_379, 16_380, 65_530, 65_531, 5_000_000]


@pytest.mark.parametrize('size', _SIZES)
def test_echo(begin, threads, size):
  call = begin('Echo')
  content = _bytes(size)
  for cuts in ([], [0, size], [size // 3, size // 3, size // 2]):
    starts = [0, *cuts]
    parts = [
      memoryview(content)[start:end]
      for start, end in zip(starts, [*cuts, size], strict=True)
    ]
    # A large message needs the window that `receive` opens.
    threads.start(lambda parts=parts: call.send(parts))
    assert call.receive() == content
    assert threads.join() == []


@pytest.mark.parametrize(('first', 'count'), [(0, 300), (4_000_000, 10)])
def test_many_messages_both_ways_at_once(begin, threads, first, count):
  call = begin('Echo')
  messages = [_bytes(first + i) for i in range(count)]
  threads.start(lambda: [call.send([message]) for message in messages])
  assert [bytes(call.receive() or b'') for _ in messages] == messages
  assert threads.join() == []


def test_refusal_while_a_large_message_is_sent(begin, threads):
  call = begin('Refuse')

  def send():
    with pytest.raises(grpc.RpcError):
      while True:
        call.send([bytes(1 << 25)])

  threads.start(send)
  error = _error(call)
  assert error.code() == _CODE.RESOURCE_EXHAUSTED
  assert error.details() == _DETAILS
  assert threads.join() == []


def test_end_without_a_word_and_unknown_method(begin):
  assert begin('Leave').receive() is None
  assert _error(begin('Nothing')).code() == _CODE.UNIMPLEMENTED


@pytest.mark.parametrize('under_way', [0, 1 << 25])
def test_server_that_stops(begin, server, threads, under_way):
  call = begin('Echo')
  call.send([b'there'])
  assert call.receive() == b'there'

  def send():
    with contextlib.suppress(grpc.RpcError):
      while under_way:
        call.send([bytes(under_way)])

  threads.start(send)
  stopped = server.stop(None)
  with pytest.raises(grpc.RpcError) as raised:
    while call.receive() is not None:
      pass
  assert errors.is_lost(raised.value)
  assert threads.join() == []
  assert stopped.wait(_PATIENCE)


def test_cancelled_call_ends_on_the_server_too(begin, server):
  call = begin('Echo')
  call.send([b'there'])
  assert call.receive() == b'there'
  call.cancel()
  assert _error(call).code() == _CODE.CANCELLED
  # The server would wait for a live call.
  assert server.stop(_PATIENCE).wait(_PATIENCE / 2)
