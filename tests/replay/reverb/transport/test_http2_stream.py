"""Tests of connecting, of silent servers, and of cancelling."""

import contextlib
import socket
import threading

import grpc
import pytest

from seedrl_jax.replay.reverb import transport
from seedrl_jax.replay.reverb.transport import http2_stream, receiver
from tests.replay.reverb.transport import scripted_peer as peers

_CODE = grpc.StatusCode
_METHOD = '/package.Service/Method'


@pytest.fixture(name='refusing')
def refusing_fixture():
  """An address where nobody listens, and nobody else can."""
  with socket.socket() as bound:
    bound.bind(('127.0.0.1', 0))
    yield bound.getsockname()


def _begin_error(address: str, timeout=peers.PATIENCE) -> transport.StreamError:
  with pytest.raises(transport.StreamError) as raised:
    http2_stream.Http2Stream(address, _METHOD).begin(timeout)
  return raised.value


def _ok(peer: peers.Peer) -> None:
  peer.begin()
  peer.send(peers.RESPONSE, peers.OK)


def _resolve(monkeypatch, *addresses: tuple[str, int]) -> list:
  """Makes every name resolve to these; returns the names looked up."""
  asked: list = []

  def getaddrinfo(host, port, *_, **__):
    asked.append((host, port))
    return [
      (socket.AF_INET, socket.SOCK_STREAM, 0, '', address)
      for address in addresses
    ]

  monkeypatch.setattr(socket, 'getaddrinfo', getaddrinfo)
  return asked


def _place(address: str) -> tuple[str, int]:
  host, port = address.split(':')
  return host, int(port)


def test_nobody_listens(refusing):
  error = _begin_error('{}:{}'.format(*refusing))
  assert error.code() == _CODE.UNAVAILABLE
  assert error.details().startswith('no server: ')


@pytest.mark.parametrize('address', ['a..b:80', 'x' * 70 + ':80', '127.0.0.1'])
def test_address_that_is_none(address):
  # None of them reaches the network.
  assert _begin_error(address).code() == _CODE.UNAVAILABLE


def test_name_that_nobody_knows(monkeypatch):
  def getaddrinfo(*_, **__):
    raise socket.gaierror(socket.EAI_NONAME, 'Name or service not known')

  monkeypatch.setattr(socket, 'getaddrinfo', getaddrinfo)
  error = _begin_error('nowhere:1')
  assert error.code() == _CODE.UNAVAILABLE
  assert 'not known' in error.details()


def test_all_addresses_of_a_name_are_tried(monkeypatch, refusing):
  with peers.serve(_ok) as address:
    asked = _resolve(monkeypatch, refusing, refusing, _place(address))
    call = http2_stream.Http2Stream('name:7', _METHOD)
    with contextlib.closing(call):
      call.begin(peers.PATIENCE)
      assert call.receive() is None
  assert asked == [('name', '7')]
  _resolve(monkeypatch, refusing, refusing)
  assert _begin_error('name:7').code() == _CODE.UNAVAILABLE


def test_address_of_ipv6(monkeypatch):
  with peers.serve(_ok) as address:
    asked = _resolve(monkeypatch, _place(address))
    call = http2_stream.Http2Stream('[::1]:8000', _METHOD)
    with contextlib.closing(call):
      call.begin(peers.PATIENCE)
  assert asked == [('::1', '8000')]


def test_listener_that_says_nothing():
  with socket.create_server(('127.0.0.1', 0)) as listener:
    address = f'127.0.0.1:{listener.getsockname()[1]}'
    error = _begin_error(address, timeout=1e-3)
  assert error.code() == _CODE.UNAVAILABLE


@pytest.mark.parametrize(
  'said',
  [
    b'',
    b'HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n',
    # An alert of TLS.
    b'\x15\x03\x01\0\x02\x02\x28',
    # What we send ourselves, as if connected to ourselves.
    peers.PREFACE,
    peers.RESPONSE,
    peers.settings((peers.WINDOW_SIZE, 2**31)),
    peers.settings()[:5],
    b'\0\x01\0\x04\0\0\0\0\0' + bytes(50),
  ],
  ids=range(8),
)
def test_listener_that_is_no_grpc_server(said):
  with peers.serve(lambda peer: peer.send(said)) as address:
    error = _begin_error(address)
  assert error.code() == _CODE.UNAVAILABLE
  assert error.details().startswith('no server: ')


def test_listener_that_stops_in_the_middle_of_its_settings():
  given_up = threading.Event()

  def script(peer):
    peer.send(peers.settings((peers.WINDOW_SIZE, 1))[:9])
    assert given_up.wait(peers.PATIENCE)

  with peers.serve(script) as address:
    error = _begin_error(address, timeout=1e-3)
    given_up.set()
  assert error.code() == _CODE.UNAVAILABLE


def test_silent_server_is_asked_and_given_up(monkeypatch):
  monkeypatch.setattr(receiver, 'SILENCE', 1e-3)
  monkeypatch.setattr(receiver, 'ANSWER', 1e-3)

  def script(peer):
    peer.begin()
    question = peer.next(peers.PING)
    assert (question.flags, len(question.payload)) == (0, 8)
    assert peer.socket.recv(1) == b''

  with peers.calling(script) as call:
    with pytest.raises(transport.StreamError) as raised:
      call.receive()
    assert raised.value.code() == _CODE.UNAVAILABLE
    assert 'does not answer' in raised.value.details()


def test_silent_server_that_answers_is_waited_for(monkeypatch):
  monkeypatch.setattr(receiver, 'SILENCE', 1e-3)
  monkeypatch.setattr(receiver, 'ANSWER', peers.PATIENCE)

  def script(peer):
    peer.begin()
    for _ in range(3):
      question = peer.next(peers.PING)
      peer.send(peers.frame(peers.PING, question.payload, peers.ACK))
    # Any frame counts as an answer.
    peer.next(peers.PING)
    peer.send(peers.RESPONSE)
    peer.next(peers.PING)
    peer.send(peers.data(peers.message(b'at last')), peers.OK)

  with peers.calling(script) as call:
    assert call.receive() == b'at last'
    assert call.receive() is None


def _cancelled(call: http2_stream.Http2Stream) -> None:
  with pytest.raises(transport.StreamError) as raised:
    call.begin(peers.PATIENCE)
  assert raised.value.code() == _CODE.CANCELLED


def test_cancelled_before_it_begins(refusing):
  with socket.create_server(('127.0.0.1', 0)) as listener:
    call = http2_stream.Http2Stream(
      f'127.0.0.1:{listener.getsockname()[1]}', _METHOD
    )
    for _ in range(2):
      call.cancel()
    _cancelled(call)
  call.cancel()
  call.close()


@contextlib.contextmanager
def _silent_host():
  """Yields an address where nobody answers before the end."""
  with contextlib.ExitStack() as stack:
    listener = stack.enter_context(socket.create_server(('127.0.0.1', 0)))
    listener.listen(0)
    # A full backlog: the system does not answer further connections.
    for _ in range(4):
      waiting = stack.enter_context(socket.socket())
      waiting.setblocking(False)
      waiting.connect_ex(listener.getsockname())
    yield '{}:{}'.format(*listener.getsockname())


def _end_of_dialling() -> None:
  for thread in threading.enumerate():
    if thread.name == 'reverb-dial':
      thread.join(peers.PATIENCE)
      assert not thread.is_alive()


def test_cancelled_while_it_connects(monkeypatch, threads):
  connecting = threading.Event()

  class Socket(socket.socket):
    def connect(self, address):
      connecting.set()
      super().connect(address)

  with _silent_host() as address:
    monkeypatch.setattr(socket, 'socket', Socket)
    call = http2_stream.Http2Stream(address, _METHOD)
    threads.start(lambda: _cancelled(call))
    assert connecting.wait(peers.PATIENCE)
    call.cancel()
    assert threads.join() == []
  _end_of_dialling()


def test_cancelled_while_a_name_is_looked_up(monkeypatch, threads):
  looking, may_know = threading.Event(), threading.Event()

  def getaddrinfo(*_, **__):
    looking.set()
    assert may_know.wait(peers.PATIENCE)
    return [(socket.AF_INET, socket.SOCK_STREAM, 0, '', found)]

  with socket.create_server(('127.0.0.1', 0)) as listener:
    found = listener.getsockname()
    listener.settimeout(peers.PATIENCE)
    monkeypatch.setattr(socket, 'getaddrinfo', getaddrinfo)
    call = http2_stream.Http2Stream('slow:1', _METHOD)
    threads.start(lambda: _cancelled(call))
    assert looking.wait(peers.PATIENCE)
    call.cancel()
    assert threads.join() == []
    # The late connection is closed.
    may_know.set()
    accepted, _ = listener.accept()
    with accepted:
      accepted.settimeout(peers.PATIENCE)
      assert accepted.recv(1) == b''
  _end_of_dialling()


def test_cancelled_as_it_is_connected(monkeypatch):
  dial = http2_stream._dial

  def dial_and_cancel(address, timeout, dialled):
    # Before the waiting thread can know.
    dialled.add_done_callback(lambda _: call.cancel())
    dial(address, timeout, dialled)

  monkeypatch.setattr(http2_stream, '_dial', dial_and_cancel)
  with socket.create_server(('127.0.0.1', 0)) as listener:
    listener.settimeout(peers.PATIENCE)
    address = '{}:{}'.format(*listener.getsockname())
    call = http2_stream.Http2Stream(address, _METHOD)
    _cancelled(call)
    accepted, _ = listener.accept()
    with accepted:
      accepted.settimeout(peers.PATIENCE)
      assert accepted.recv(1) == b''


def test_cancelled_while_the_server_keeps_silent(threads):
  connected = threading.Event()

  def script(peer):
    peer.hello()
    connected.set()
    peer.drain()

  with peers.serve(script) as address:
    call = http2_stream.Http2Stream(address, _METHOD)
    threads.start(lambda: _cancelled(call))
    assert connected.wait(peers.PATIENCE)
    call.cancel()
    assert threads.join() == []


def test_cancelled_while_it_receives(threads):
  begun = threading.Event()

  def script(peer):
    peer.begin()
    peer.send(peers.RESPONSE, peers.data(peers.message(b'one')))
    peer.send(peers.data(peers.message(b'two')[:6]))
    begun.set()
    peer.drain()

  with peers.calling(script) as call:
    assert call.receive() == b'one'

    def receive():
      with pytest.raises(transport.StreamError) as raised:
        call.receive()
      assert raised.value.code() == _CODE.CANCELLED

    threads.start(receive)
    assert begun.wait(peers.PATIENCE)
    for _ in range(2):
      call.cancel()
    assert threads.join() == []
  call.cancel()
