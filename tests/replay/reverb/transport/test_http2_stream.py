"""Tests of a stream's bytes, against a peer scripted frame by frame."""

import contextlib
import random
import socket
import struct
import threading

import grpc
import pytest

from seedrl_jax.replay.reverb import transport
from seedrl_jax.replay.reverb.transport import (
  http2,
  http2_connection,
  http2_stream,
)
from tests.replay.reverb.transport import scripted_peer as peers

_CODE = grpc.StatusCode
_METHOD = '/package.Service/Method'
# The initial window.
_FIRST = 65_535
_LARGEST = 2**31 - 1
_MESSAGES = [b'', b'a', bytes(range(40)), b'', b'last']
_STREAM = b''.join(map(peers.message, _MESSAGES))


def _answer(*parts: bytes):
  """Returns a script that sends these bytes and ends."""

  def script(peer: peers.Peer) -> None:
    peer.begin()
    peer.send(*parts)

  return script


def _received(call) -> tuple[list[bytes], transport.StreamError | None]:
  """Returns the messages and the error after them."""
  messages: list[bytes] = []
  try:
    while (message := call.receive()) is not None:
      messages.append(bytes(message))
  except transport.StreamError as e:
    return messages, e
  return messages, None


def _error(*parts: bytes, messages: int = 0) -> transport.StreamError:
  """Returns the answer's error after so many messages."""
  with peers.calling(_answer(*parts)) as call:
    got, error = _received(call)
    assert len(got) == messages
  assert error is not None
  return error


def _begin_error(address: str) -> transport.StreamError:
  with pytest.raises(transport.StreamError) as raised:
    http2_stream.Http2Stream(address, _METHOD).begin(peers.PATIENCE)
  return raised.value


def test_a_silent_server_is_asked_whether_it_is_there():
  with peers.calling(_answer()) as call:
    options = [
      call._socket.getsockopt(socket.IPPROTO_TCP, option)
      for option in (socket.TCP_KEEPIDLE, socket.TCP_USER_TIMEOUT)
    ]
  assert options == [60, 20_000]


@pytest.mark.parametrize('address', [None, 'a..b:80', '127.0.0.1'])
def test_no_server_at_an_address(address):
  with socket.socket() as bound:
    bound.bind(('127.0.0.1', 0))
    error = _begin_error(address or '{}:{}'.format(*bound.getsockname()))
  assert error.code() == _CODE.UNAVAILABLE
  assert address or error.details().startswith('no server: ')


@pytest.mark.parametrize(
  'said',
  [
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
  ids=range(7),
)
def test_listener_that_is_no_grpc_server(said):
  with peers.serve(lambda peer: peer.send(said)) as address:
    error = _begin_error(address)
  assert error.code() == _CODE.UNAVAILABLE
  assert error.details().startswith('no server: ')


def _cancelled(function) -> None:
  with pytest.raises(transport.StreamError) as raised:
    function()
  assert raised.value.code() == _CODE.CANCELLED


def test_cancelled_before_it_begins():
  with socket.create_server(('127.0.0.1', 0)) as listener:
    call = http2_stream.Http2Stream(
      f'127.0.0.1:{listener.getsockname()[1]}', _METHOD
    )
    for _ in range(2):
      call.cancel()
    _cancelled(lambda: call.begin(peers.PATIENCE))
  call.cancel()
  call.close()


def test_cancelled_while_the_server_keeps_silent(threads):
  connected = threading.Event()

  def script(peer):
    peer.hello()
    connected.set()
    peer.drain()

  with peers.serve(script) as address:
    call = http2_stream.Http2Stream(address, _METHOD)
    threads.start(lambda: _cancelled(lambda: call.begin(peers.PATIENCE)))
    assert connected.wait(peers.PATIENCE)
    call.cancel()
    assert threads.join() == []


@pytest.mark.parametrize('waits_for', ['room', 'the system', 'an answer'])
def test_cancel_ends_what_is_under_way(threads, waits_for):
  waiting, cancelled = threading.Event(), threading.Event()

  def script(peer):
    peer.begin((peers.WINDOW_SIZE, _LARGEST))
    if waits_for == 'the system':
      peer.send(peers.window_update(_LARGEST - _FIRST, 0))
    answer = peers.message(b'go on')
    peer.send(peers.RESPONSE, peers.data(answer + answer[:6]))
    if waits_for != 'an answer':
      peer.next(peers.DATA)
    waiting.set()
    # The peer reads only one frame until then.
    assert cancelled.wait(peers.PATIENCE)

  with peers.calling(script) as call:
    assert call.receive() == b'go on'
    if waits_for == 'an answer':
      threads.start(lambda: _cancelled(call.receive))
    else:
      threads.start(lambda: _cancelled(lambda: call.send([bytes(1 << 26)])))
    assert waiting.wait(peers.PATIENCE)
    call.cancel()
    assert threads.join() == []
    cancelled.set()


@pytest.mark.parametrize('size', [1, 4, 7, 100])
def test_messages_and_frames_need_not_coincide(size):
  # They say nothing here.
  others = [
    peers.data(b''),
    peers.frame(0xEE, b'from the future', 0xFF, 7),
    peers.frame(peers.PING, b'answered', peers.ACK),
    peers.frame(peers.SETTINGS, b'', peers.ACK),
    peers.settings((0xFFFF, 2**32 - 1)),
    # The server accepts no further calls.
    peers.frame(peers.GOAWAY, _LARGEST.to_bytes(4, 'big') + bytes(4)),
    peers.frame(peers.GOAWAY, b'\0\0\0\x01' + bytes(4) + b'bye'),
  ]
  mixed = [
    peers.data(_STREAM[i : i + size]) + b''.join(others)
    for i in range(0, len(_STREAM), size)
  ]
  script = _answer(*others[1:], peers.RESPONSE, *mixed, peers.OK)
  with peers.calling(script) as call:
    assert _received(call) == (_MESSAGES, None)


def test_what_was_received_may_be_sent_anew(monkeypatch):
  window = 2**17 - 1
  monkeypatch.setattr(http2, 'LARGEST_WINDOW', window)
  content = bytes(range(256)) * 4096

  def script(peer):
    peer.begin()
    peer.send(peers.RESPONSE)
    stream = peers.message(content)
    allowed = {0: window, 1: window}
    while stream:
      part, stream = stream[:800], stream[800:]
      for number in allowed:
        while allowed[number] < len(part):
          update = peer.next(peers.WINDOW_UPDATE)
          allowed[update.stream] += int.from_bytes(update.payload, 'big')
          assert allowed[update.stream] <= window
        allowed[number] -= len(part)
      peer.send(peers.data(part))
    peer.send(peers.OK)

  with peers.calling(script) as call:
    assert _received(call) == ([content], None)


@pytest.mark.parametrize(
  ('number', 'said', 'code', 'details'),
  [
    ('5', 'its words', _CODE.NOT_FOUND, 'its words'),
    ('9', 'gr%C3%B6%C3%9Fer 100%25', _CODE.FAILED_PRECONDITION, 'größer 100%'),
    ('9', '100% %zz', _CODE.FAILED_PRECONDITION, '100% %zz'),
    ('16', '%FF', _CODE.UNAUTHENTICATED, '\N{REPLACEMENT CHARACTER}'),
    ('17', '', _CODE.UNKNOWN, ''),
    ('x', '', _CODE.UNKNOWN, ''),
    ('٣', '', _CODE.UNKNOWN, ''),
  ],
)
def test_status_of_the_server(number, said, code, details):
  answer = peers.trailers(grpc_status=number, grpc_message=said)
  error = _error(peers.RESPONSE, peers.data(_STREAM), answer, messages=5)
  assert (error.code(), error.details()) == (code, details)
  # Trailers only, as servers refuse a call.
  only = peers.trailers(status='200', grpc_status=number)
  assert _error(only).code() == code


def test_reset_and_shutdown():
  reset = peers.frame(peers.RST_STREAM, bytes([0, 0, 0, 8]), stream=1)
  error = _error(peers.RESPONSE, peers.data(_STREAM[:8]), reset, messages=1)
  assert error.code() == _CODE.UNAVAILABLE
  assert error.details() == 'the server ended the call, error 8'
  # A server that needs no more of the request.
  with peers.calling(_answer(peers.RESPONSE, peers.OK, reset)) as call:
    assert _received(call) == ([], None)
  error = _error(peers.frame(peers.GOAWAY, bytes(8)))
  assert error.code() == _CODE.UNAVAILABLE
  assert 'shutting down' in error.details()


# A message, another in two frames, and a status.
_WHOLE = b''.join([
  peers.settings((3, 100)),
  peers.RESPONSE,
  peers.data(peers.message(b'ab')),
  peers.data(peers.message(b'cde')[:6]),
  peers.data(b'de'),
  peers.OK,
])
_WHOLE_MESSAGES = [b'ab', b'cde']


@pytest.mark.parametrize('size', [*range(0, len(_WHOLE), 3), None])
def test_connection_that_ends_anywhere(size):
  def script(peer):
    peer.hello()
    peer.send(_WHOLE[:size])

  with peers.serve(script) as address:
    call = http2_stream.Http2Stream(address, _METHOD)
    messages: list[bytes] = []
    with contextlib.closing(call):
      try:
        call.begin(peers.PATIENCE)
        messages, error = _received(call)
      except transport.StreamError as e:
        error = e
  if size is None:
    assert (messages, error) == (_WHOLE_MESSAGES, None)
  else:
    assert error.code() == _CODE.UNAVAILABLE
    assert messages == _WHOLE_MESSAGES[: len(messages)]


@pytest.mark.parametrize(
  ('last', 'code'),
  [
    (peers.OK, _CODE.INTERNAL),
    # The server's reason has priority.
    (peers.trailers(grpc_status='8'), _CODE.RESOURCE_EXHAUSTED),
    (peers.data(b'', peers.END_STREAM), _CODE.UNKNOWN),
  ],
  ids=['well', 'with an error', 'without a status'],
)
@pytest.mark.parametrize('size', [1, 5, 6])
def test_message_that_is_cut_off(last, code, size):
  cut = peers.data(peers.message(b'abc')[:size])
  assert _error(peers.RESPONSE, cut, last).code() == code


@pytest.mark.parametrize('text', [b'', b'sorry'])
def test_answer_that_is_not_of_grpc(text):
  error = _error(
    peers.headers(status='404', content_type='text/html'),
    peers.data(text, peers.END_STREAM),
  )
  assert error.code() == _CODE.UNKNOWN
  assert '404' in error.details()


_NONSENSE = [
  (peers.RESPONSE + peers.data(b'\1\0\0\0\3abc'), 'compressed'),
  (peers.frame(peers.HEADERS, b'\xff' * 20, 4, 1), 'not understood'),
  (peers.frame(peers.HEADERS, b'\0', 4 | peers.PADDED, 1), 'flags 0xc'),
  (peers.frame(peers.HEADERS, b'', 0, 1), 'flags 0x0'),
  (peers.data(b'\0', peers.PADDED), 'padded'),
  (peers.frame(peers.RST_STREAM, b'\0', stream=1), 'number of 1 bytes'),
  (peers.frame(peers.GOAWAY, b''), 'number of 0 bytes'),
  (peers.frame(peers.WINDOW_UPDATE, b'\0'), 'number of 1 bytes'),
  (peers.frame(peers.SETTINGS, b'\0'), 'settings of 1 bytes'),
  (peers.settings((peers.WINDOW_SIZE, 2**31)), 'window of 2147483648'),
  (peers.settings((peers.FRAME_SIZE, 16_383)), 'at most 16383 bytes'),
  (peers.settings((peers.FRAME_SIZE, 2**24)), 'at most 16777216 bytes'),
  (peers.frame(0x77, bytes(70_000)), 'has 70000 bytes'),
  (b'HTTP/1.1 400 Bad Request\r\n\r\n', 'not understood'),
]


@pytest.mark.parametrize(
  ('nonsense', 'words'), [pytest.param(*n, id=n[1]) for n in _NONSENSE]
)
def test_nonsense(nonsense, words):
  # A message behind it must not be returned.
  error = _error(nonsense, peers.data(peers.message(b'wrong')))
  assert error.code() == _CODE.INTERNAL
  assert words in error.details()


def test_last_words_are_read_though_nothing_can_be_answered(threads):
  last = peers.trailers(status='200', grpc_status='5', grpc_message='no table')
  gone = threading.Event()

  def script(peer):
    peer.begin()
    peer.send(peers.ping(b'answer!!'), peers.settings(), last)
    # What the client sends now is refused.
    linger = struct.pack('ii', 1, 0)
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    peer.socket.close()
    gone.set()

  with peers.calling(script) as call:
    assert gone.wait(peers.PATIENCE)
    threads.until(lambda: _is_reset(call))
    _, error = _received(call)
  assert (error.code(), error.details()) == (_CODE.NOT_FOUND, 'no table')


def _is_reset(call) -> bool:
  """Sends; returns whether the system reports a reset connection."""
  try:
    call.send([])
  except transport.StreamError:
    return True
  return False


def _bytes(size: int) -> bytes:
  return random.Random(size).randbytes(size)


def _exchange(script, threads, *messages) -> None:
  """Sends messages while receiving, until the script ends the call."""

  def whole(peer):
    script(peer)
    peer.send(peers.RESPONSE, peers.OK)

  with peers.calling(whole) as call:
    threads.start(lambda: [call.send(parts) for parts in messages])
    assert call.receive() is None
    assert threads.join() == []


def _nothing_more(peer: peers.Peer) -> None:
  """Checks that the client's next frame is not DATA."""
  peer.send(peers.ping(b'any more'))
  assert peer.next(peers.PING) == (peers.PING, peers.ACK, 0, b'any more')


def _allow(peer: peers.Peer, call: int = 0, connection: int = 0) -> None:
  for stream, size in ((1, call), (0, connection)):
    if size:
      peer.send(peers.window_update(size, stream))


@pytest.mark.parametrize('limited', ['call', 'connection'])
def test_not_a_byte_more_than_allowed(threads, limited):
  content = _bytes(100_000)
  stream = peers.message(content)
  got: list[bytes] = []

  def script(peer):
    peer.begin()
    other = 'connection' if limited == 'call' else 'call'
    _allow(peer, **{other: 10**6})
    got.extend(peer.data(_FIRST))
    left = len(stream) - _FIRST
    for size in (1, 2, 20_000, 5):
      _nothing_more(peer)
      _allow(peer, **{limited: size})
      got.extend(peer.data(size))
      left -= size
    _nothing_more(peer)
    _allow(peer, **{limited: 10**6})
    got.extend(peer.data(left))

  _exchange(script, threads, [content])
  assert b''.join(got) == stream


def test_first_window_shrinks_and_grows(threads):
  content = _bytes(200_000)
  stream = peers.message(content)
  got: list[bytes] = []

  def take(peer, size):
    got.extend(peer.data(size))
    _nothing_more(peer)

  def change(peer, size):
    peer.send(peers.settings((peers.WINDOW_SIZE, size)))
    assert peer.next(peers.SETTINGS).flags == peers.ACK

  def script(peer):
    peer.begin((peers.WINDOW_SIZE, 0))
    _allow(peer, connection=10**6)
    _nothing_more(peer)
    change(peer, _FIRST)
    take(peer, _FIRST)
    # The window is now -64,535.
    change(peer, 1000)
    _nothing_more(peer)
    _allow(peer, call=_FIRST - 1000)
    _nothing_more(peer)
    _allow(peer, call=10)
    take(peer, 10)
    change(peer, 1500)
    take(peer, 500)
    change(peer, 0)
    _allow(peer, call=10**6)
    got.extend(peer.data(len(stream) - sum(map(len, got))))

  _exchange(script, threads, [content])
  assert b''.join(got) == stream


class _Miser:
  """A socket that takes a few bytes at a time."""

  def __init__(self, size: int):
    self._size = size
    self.taken = b''

  def sendmsg(self, buffers) -> int:
    assert len(buffers) <= 512
    sent = b''.join(bytes(b) for b in buffers)[: self._size]
    self.taken += sent
    return len(sent)


@pytest.mark.parametrize('size', [1, 3, 600, 10**6])
def test_all_is_sent_however_little_is_taken_at_once(size):
  parts = [bytes([i % 251]) * (i % 4 + 1) for i in range(1300)]
  target = _Miser(size)
  http2.send_all(target, list(parts))
  assert target.taken == b''.join(parts)


class _Held:
  """Blocks a thread at the end of a function until it is released."""

  def __init__(self, function):
    self._function = function
    self.reached, self.go_on = threading.Event(), threading.Event()

  def __call__(self, *args):
    result = self._function(*args)
    self.reached.set()
    assert self.go_on.wait(peers.PATIENCE)
    return result


def test_room_is_not_taken_back_from_what_is_about_to_be_sent(
  monkeypatch, threads
):
  """Data after acknowledged settings must be within them."""
  order = []

  def script(peer):
    peer.begin()
    assert held.reached.wait(peers.PATIENCE)
    peer.send(peers.settings((peers.WINDOW_SIZE, 10)))
    threads.until(lambda: call._sender._initial == 10)
    held.go_on.set()
    while order.count('data') < 4 or 'settings' not in order:
      kind = peer.frame().kind
      order.append('data' if kind == peers.DATA else 'settings')
    peer.send(peers.trailers(status='200', grpc_status='5', grpc_message='t'))

  held = _Held(http2_connection.Sender._take)
  monkeypatch.setattr(
    http2_connection.Sender, '_take', lambda *args: held(*args)
  )
  senders = type(threads)()
  with peers.calling(script) as call:

    def send():
      # The status ends a message that waits for room.
      with pytest.raises(transport.StreamError):
        call.send([bytes(100_000)])

    senders.start(send)
    _, error = _received(call)
    assert (error.code(), error.details()) == (_CODE.NOT_FOUND, 't')
    assert senders.join() == []
    with pytest.raises(transport.StreamError):
      call.send([b'later'])
  # 65,535 bytes of data in frames of 16,384.
  assert order == ['data'] * 4 + ['settings']
