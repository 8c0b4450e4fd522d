"""Tests of answers that break off or make no sense: an error, and no hang."""

import threading

import grpc
import pytest

from seedrl_jax.replay.reverb import transport
from seedrl_jax.replay.reverb.transport import http2_stream
from tests.replay.reverb.transport import scripted_peer as peers

_CODE = grpc.StatusCode
# A message, another in two frames, and a status.
_RESPONSE = b''.join([
  peers.settings((3, 100)),
  peers.RESPONSE,
  peers.data(peers.message(b'ab')),
  peers.data(peers.message(b'cde')[:6]),
  peers.data(b'de'),
  peers.OK,
])
_MESSAGES = [b'ab', b'cde']


def _answer(*parts: bytes):
  def script(peer: peers.Peer) -> None:
    peer.begin()
    peer.send(*parts)

  return script


def _received(call) -> tuple[list[bytes], transport.StreamError | None]:
  """Returns messages, and the error after them."""
  messages: list[bytes] = []
  try:
    while (message := call.receive()) is not None:
      messages.append(bytes(message))
  except transport.StreamError as e:
    return messages, e
  return messages, None


@pytest.mark.parametrize('end', ['closed', 'reset'])
@pytest.mark.parametrize('size', range(len(_RESPONSE)))
def test_connection_that_ends_anywhere(size, end):
  def script(peer):
    peer.hello()
    peer.send(_RESPONSE[:size])
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
  assert messages == _MESSAGES[: len(messages)]


def test_that_answer_as_a_whole():
  with peers.calling(lambda peer: (peer.hello(), peer.send(_RESPONSE))) as call:
    assert _received(call) == (_MESSAGES, None)


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
  # Where the server says why, that is what counts.
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
  # Behind it a message, which is not to be taken for an answer.
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
  """Sends; whether the system has learnt that nobody takes it."""
  try:
    call.send([])
  except transport.StreamError:
    return True
  return False
