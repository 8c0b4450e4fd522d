"""Tests of valid and invalid answers from a server."""

import threading

import grpc
import hpack
import pytest

from seedrl_jax.replay.reverb import transport
from seedrl_jax.replay.reverb.transport import http2, http2_stream
from tests.replay.reverb.transport import scripted_peer as peers

_CODE = grpc.StatusCode


def _answer(*parts: bytes):
  """Returns a script that sends these bytes and ends."""

  def script(peer: peers.Peer) -> None:
    peer.begin()
    peer.send(*parts)

  return script


def _receive_all(call) -> list[bytes]:
  messages = []
  while (message := call.receive()) is not None:
    messages.append(bytes(message))
  return messages


def _error(*parts: bytes, before: int = 0) -> transport.StreamError:
  """Returns the answer's error after `before` messages."""
  with peers.calling(_answer(*parts)) as call:
    for _ in range(before):
      assert call.receive() is not None
    with pytest.raises(transport.StreamError) as raised:
      call.receive()
    # A second call raises, too.
    with pytest.raises(transport.StreamError):
      call.receive()
  return raised.value


def test_what_a_call_begins_with():
  seen: list = []

  def script(peer):
    seen.extend(peer.hello())
    peer.send(peers.settings(), peers.RESPONSE, peers.OK)

  with peers.calling(script) as call:
    assert call.receive() is None
  settings, window, request = seen
  pairs = dict(http2.parse_settings(settings.payload))
  # No push, the largest window, frames of 4 MiB.
  assert pairs == {2: 0, 4: 2**31 - 1, 5: 4 << 20}
  assert (window.stream, int.from_bytes(window.payload, 'big')) == (
    0,
    2**31 - 1 - 65_535,
  )
  assert (request.flags, request.stream) == (peers.END_HEADERS, 1)
  fields = dict(hpack.Decoder().decode(request.payload))
  assert fields.pop(':authority').startswith('127.0.0.1:')
  assert fields == {
    ':method': 'POST',
    ':scheme': 'http',
    ':path': '/package.Service/Method',
    'te': 'trailers',
    'content-type': 'application/grpc',
  }


_MESSAGES = [b'', b'a', bytes(range(40)), b'', b'last']
_STREAM = b''.join(map(peers.message, _MESSAGES))


@pytest.mark.parametrize('size', [1, 2, 3, 4, 5, 6, 7, 11, 100])
def test_messages_and_frames_need_not_coincide(size):
  frames = [
    peers.data(_STREAM[i : i + size]) + peers.data(b'')
    for i in range(0, len(_STREAM), size)
  ]
  script = _answer(peers.RESPONSE, *frames, peers.OK)
  with peers.calling(script) as call:
    assert _receive_all(call) == _MESSAGES


def test_answer_that_comes_byte_by_byte():
  def script(peer):
    peer.begin()
    for byte in peers.RESPONSE + peers.data(_STREAM) + peers.OK:
      peer.send(bytes([byte]))

  with peers.calling(script) as call:
    assert _receive_all(call) == _MESSAGES


def test_large_message_in_frames_of_all_sizes():
  content = bytes(range(251)) * 4000
  stream = peers.message(content) * 2
  frames, start = [], 0
  for size in [3, 5000, 4087, 1, 9, 100_000, 4096, 70_000, len(stream)]:
    frames.append(peers.data(stream[start : start + size]))
    start += size
  with peers.calling(_answer(peers.RESPONSE, *frames, peers.OK)) as call:
    assert _receive_all(call) == [content, content]


def test_message_stays_as_it_is():
  count = 50
  contents = [bytes([i]) * 5000 for i in range(count)]
  frames = [peers.data(peers.message(content)) for content in contents]
  with peers.calling(_answer(peers.RESPONSE, *frames, peers.OK)) as call:
    messages = [call.receive() for _ in range(count)]
    assert call.receive() is None
  assert [bytes(m) for m in messages] == contents


def _padded(kind: int, start: bytes, block: bytes, flags: int) -> bytes:
  payload = bytes([3]) + start + block + bytes(3)
  return peers.frame(kind, payload, flags | peers.PADDED, 1)


def test_padding_and_priority():
  response = peers.fields(status='200')
  last = peers.fields(grpc_status='0')
  ends = peers.END_HEADERS | peers.HAS_PRIORITY
  parts = [
    _padded(peers.HEADERS, bytes(5), response, ends),
    # Padding in the middle of a prefix and of a message.
    _padded(peers.DATA, b'', _STREAM[:7], 0),
    _padded(peers.DATA, b'', b'', 0),
    _padded(peers.DATA, b'', _STREAM[7:], 0),
    _padded(peers.HEADERS, bytes(5), last, ends | peers.END_STREAM),
  ]
  with peers.calling(_answer(*parts)) as call:
    assert _receive_all(call) == _MESSAGES


def test_headers_in_several_frames():
  block = peers.fields(grpc_status='5', grpc_message='not here')
  parts = [
    peers.frame(peers.HEADERS, block[:2], peers.END_STREAM, 1),
    peers.frame(peers.CONTINUATION, block[2:4], 0, 1),
    peers.frame(peers.CONTINUATION, b'', 0, 1),
    peers.frame(peers.CONTINUATION, block[4:], peers.END_HEADERS, 1),
  ]
  error = _error(peers.RESPONSE, peers.data(_STREAM), *parts, before=5)
  assert (error.code(), error.details()) == (_CODE.NOT_FOUND, 'not here')


def test_frames_that_say_nothing_here():
  others = [
    peers.frame(0xEE, b'from the future', 0xFF, 7),
    peers.frame(peers.PRIORITY, bytes(5), stream=1),
    peers.frame(peers.PING, b'answered', peers.ACK),
    peers.frame(peers.SETTINGS, b'', peers.ACK),
    peers.settings((0xFFFF, 2**32 - 1)),
    # The server accepts no further calls.
    peers.frame(peers.GOAWAY, (2**31 - 1).to_bytes(4, 'big') + bytes(4)),
    peers.frame(peers.GOAWAY, b'\0\0\0\x01' + bytes(4) + b'bye'),
  ]
  parts = [peers.data(_STREAM[i : i + 5]) for i in range(0, len(_STREAM), 5)]
  mixed = [part + b''.join(others) for part in parts]
  script = _answer(*others, peers.RESPONSE, *mixed, peers.OK)
  with peers.calling(script) as call:
    assert _receive_all(call) == _MESSAGES


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
      # Padding counts too.
      payload = bytes([200]) + stream[:800] + bytes(200)
      stream = stream[800:]
      for number in allowed:
        while allowed[number] < len(payload):
          update = peer.next(peers.WINDOW_UPDATE)
          allowed[update.stream] += int.from_bytes(update.payload, 'big')
          assert allowed[update.stream] <= window
        allowed[number] -= len(payload)
      peer.send(peers.frame(peers.DATA, payload, peers.PADDED, 1))
    peer.send(peers.OK)

  with peers.calling(script) as call:
    assert _receive_all(call) == [content]


@pytest.mark.parametrize('code', list(_CODE))
def test_status_of_the_server(code):
  number = str(code.value[0])
  answer = peers.trailers(grpc_status=number, grpc_message='its words')
  if code == _CODE.OK:
    with peers.calling(_answer(peers.RESPONSE, answer)) as call:
      assert [call.receive(), call.receive()] == [None, None]
  else:
    error = _error(peers.RESPONSE, peers.data(_STREAM), answer, before=5)
    assert (error.code(), error.details()) == (code, 'its words')
    assert str(error) == f'{code.name}: its words'


@pytest.mark.parametrize(
  'number', ['17', '-1', '', 'x', '٣', pytest.param('9' * 5000, id='long')]
)
def test_status_that_nobody_knows(number):
  assert _error(peers.RESPONSE, peers.trailers(grpc_status=number)).code() == (
    _CODE.UNKNOWN
  )


@pytest.mark.parametrize(
  ('said', 'details'),
  [
    ('gr%C3%B6%C3%9Fer 100%25', 'größer 100%'),
    ('100% %zz', '100% %zz'),
    ('%FF', '\N{REPLACEMENT CHARACTER}'),
    (None, ''),
  ],
)
def test_details(said, details):
  # Trailers only, as servers refuse a call.
  more = {} if said is None else {'grpc_message': said}
  only = peers.trailers(status='200', grpc_status='9', **more)
  error = _error(only)
  assert (error.code(), error.details()) == (
    _CODE.FAILED_PRECONDITION,
    details,
  )


@pytest.mark.parametrize(
  ('number', 'code'),
  [
    (0, _CODE.INTERNAL),
    (2, _CODE.INTERNAL),
    (7, _CODE.UNAVAILABLE),
    (8, _CODE.CANCELLED),
    (11, _CODE.RESOURCE_EXHAUSTED),
    (12, _CODE.PERMISSION_DENIED),
    (99, _CODE.INTERNAL),
  ],
)
def test_reset(number, code):
  reset = peers.frame(peers.RST_STREAM, bytes([0, 0, 0, number]), stream=1)
  error = _error(peers.RESPONSE, peers.data(_STREAM[:8]), reset, before=1)
  assert error.code() == code
  assert str(number) in error.details()
  # A server that needs no more of the request.
  script = _answer(peers.RESPONSE, peers.OK, reset)
  with peers.calling(script) as call:
    assert call.receive() is None


def test_going_away_without_the_call():
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


def _received(call) -> tuple[list[bytes], transport.StreamError | None]:
  """Returns the messages and the error after them."""
  messages: list[bytes] = []
  try:
    while (message := call.receive()) is not None:
      messages.append(bytes(message))
  except transport.StreamError as e:
    return messages, e
  return messages, None


@pytest.mark.parametrize('end', ['closed', 'reset'])
@pytest.mark.parametrize('size', range(len(_WHOLE)))
def test_connection_that_ends_anywhere(size, end):
  def script(peer):
    peer.hello()
    peer.send(_WHOLE[:size])
    if end == 'reset':
      peer.reset()

  with peers.serve(script) as address:
    call = http2_stream.Http2Stream(address, '/package.Service/Method')
    messages: list[bytes] = []
    try:
      call.begin(peers.PATIENCE)
      messages, error = _received(call)
    except transport.StreamError as e:
      error = e
    finally:
      call.close()
  assert error is not None
  assert error.code() == _CODE.UNAVAILABLE
  assert messages == _WHOLE_MESSAGES[: len(messages)]


def test_that_answer_as_a_whole():
  with peers.calling(lambda peer: (peer.hello(), peer.send(_WHOLE))) as call:
    assert _received(call) == (_WHOLE_MESSAGES, None)


@pytest.mark.parametrize(
  ('last', 'code'),
  [
    (peers.OK, _CODE.INTERNAL),
    (peers.trailers(grpc_status='8'), _CODE.RESOURCE_EXHAUSTED),
    (peers.data(b'', peers.END_STREAM), _CODE.UNKNOWN),
  ],
  ids=['well', 'with an error', 'without a status'],
)
@pytest.mark.parametrize('size', [1, 4, 5, 6, 7])
def test_message_that_is_cut_off(last, code, size):
  cut = peers.data(peers.message(b'abc')[:size])
  with peers.calling(_answer(peers.RESPONSE, cut, last)) as call:
    messages, error = _received(call)
  assert messages == []
  assert error is not None
  # The server's reason has priority.
  assert error.code() == code


@pytest.mark.parametrize(
  ('status', 'code'),
  [
    ('503', _CODE.UNAVAILABLE),
    ('502', _CODE.UNAVAILABLE),
    ('429', _CODE.UNAVAILABLE),
    ('404', _CODE.UNKNOWN),
    ('200', _CODE.UNKNOWN),
  ],
)
@pytest.mark.parametrize('with_text', [True, False])
def test_answer_that_is_not_of_grpc(status, code, with_text):
  parts = [peers.trailers(status=status, content_type='text/html')]
  if with_text:
    parts = [
      peers.headers(status=status),
      peers.data(b'' if status == '200' else b'sorry', peers.END_STREAM),
    ]
  with peers.calling(_answer(*parts)) as call:
    messages, error = _received(call)
  assert messages == []
  assert error is not None
  assert error.code() == code
  assert status in error.details()


_ENDLESS = b''.join([
  peers.frame(peers.HEADERS, bytes(100), 0, 1),
  *[peers.frame(peers.CONTINUATION, bytes(16_000), 0, 1)] * 6,
])


_NONSENSE = [
  (peers.RESPONSE + peers.data(b'\1\0\0\0\3abc'), 'compressed'),
  (peers.frame(peers.HEADERS, b'\xff' * 20, 4, 1), 'not understood'),
  (peers.frame(peers.HEADERS, b'', 4 | peers.PADDED, 1), 'all padding'),
  (peers.frame(peers.HEADERS, b'', 0, 1) + peers.OK, 'cut off'),
  (_ENDLESS, 'headers have over'),
  (peers.data(b'', peers.PADDED), 'all padding'),
  (peers.data(b'\5\0\0\0\0', peers.PADDED), 'all padding'),
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
  more = peers.data(peers.message(b'wrong'))
  with peers.calling(_answer(nonsense, more)) as call:
    messages, error = _received(call)
  assert messages == []
  assert error is not None
  assert error.code() == _CODE.INTERNAL
  assert words in error.details()


def test_last_words_are_read_though_nothing_can_be_answered(threads):
  last = peers.trailers(status='200', grpc_status='5', grpc_message='no table')
  gone = threading.Event()

  def script(peer):
    peer.begin()
    peer.send(peers.ping(b'answer!!'), peers.settings(), last)
    peer.reset()
    gone.set()

  with peers.calling(script) as call:
    assert gone.wait(peers.PATIENCE)
    threads.until(lambda: _is_reset(call))
    messages, error = _received(call)
  assert messages == []
  assert error is not None
  assert (error.code(), error.details()) == (_CODE.NOT_FOUND, 'no table')


def _is_reset(call) -> bool:
  """Sends; returns whether the system reports a reset connection."""
  try:
    call.send([])
  except transport.StreamError:
    return True
  return False
