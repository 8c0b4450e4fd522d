"""A stream through gRPC's own library, to compare ours with."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import grpc

from seedrl_jax.replay.reverb.transport import stream

CHANNEL_OPTIONS = (
  ('grpc.max_receive_message_length', -1),
  ('grpc.max_send_message_length', -1),
  # Otherwise the connection to a lost server could be used again.
  ('grpc.use_local_subchannel_pool', 1),
  # Detects a machine that vanished. Servers close the connection if pings come
  # less than five minutes apart.
  ('grpc.keepalive_time_ms', 310_000),
  ('grpc.keepalive_timeout_ms', 20_000),
  # Otherwise a retry after a refused connection waits for a second.
  ('grpc.initial_reconnect_backoff_ms', 100),
  ('grpc.enable_http_proxy', 0),
)


class GrpcStream:
  """A `stream.Stream`; `begin` does not wait for the connection."""

  def __init__(self, address: str, method: str):
    self._method = method
    self._channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
    self._call: Any = None
    self._changed = threading.Condition()
    self._next: bytes | None = None
    self._cancelled = self._ended = False

  def begin(self, timeout: float) -> None:
    del timeout
    self._call = self._channel.stream_stream(self._method)(self._messages())
    if not self._call.add_callback(self._end):
      self._end()
    if self._cancelled:
      self._call.cancel()

  def send(self, parts: Sequence[stream.Buffer]) -> None:
    message = b''.join(parts)
    with self._changed:
      self._changed.wait_for(lambda: self._ended or self._next is None)
      if self._ended:
        code = grpc.StatusCode.UNAVAILABLE
        if self._cancelled:
          code = grpc.StatusCode.CANCELLED
        raise stream.StreamError(code, 'the stream has ended')
      self._next = message
      self._changed.notify_all()

  def receive(self) -> memoryview | None:
    try:
      return memoryview(next(self._call))
    except StopIteration:
      return None

  def cancel(self) -> None:
    self._cancelled = True
    self._end()
    if self._call is not None:
      self._call.cancel()

  def close(self) -> None:
    self._end()
    self._channel.close()

  def _messages(self) -> Iterator[bytes]:
    while True:
      with self._changed:
        self._changed.wait_for(lambda: self._ended or self._next is not None)
        message, self._next = self._next, None
        if self._ended or message is None:
          return
        self._changed.notify_all()
      yield message

  def _end(self) -> None:
    with self._changed:
      self._ended = True
      self._changed.notify_all()
