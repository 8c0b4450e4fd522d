"""Bidirectional streams of messages to a Reverb server."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import grpc

CHANNEL_OPTIONS = (
  ('grpc.max_receive_message_length', -1),
  ('grpc.max_send_message_length', -1),
  # Otherwise the connection to a lost server could be used again.
  ('grpc.use_local_subchannel_pool', 1),
  # We retry ourselves. If a server shuts down while a call begins, gRPC's own
  # retries lose the call: it never ends, even if cancelled (seen in 1.85).
  ('grpc.enable_retries', 0),
  # Detects a machine that vanished. Servers close the connection if pings come
  # less than five minutes apart.
  ('grpc.keepalive_time_ms', 310_000),
  ('grpc.keepalive_timeout_ms', 20_000),
  # Otherwise a retry after a refused connection waits for a second.
  ('grpc.initial_reconnect_backoff_ms', 100),
  # Gives up a connection that nobody accepts.
  ('grpc.min_reconnect_backoff_ms', 5_000),
  ('grpc.enable_http_proxy', 0),
)


class Stream:
  """One stream over a connection of its own; any thread may cancel it."""

  def __init__(self, address: str, method: str):
    """`method` is '/package.Service/Method', `address` 'host:port'."""
    self._method = method
    self._channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
    self._call: Any = None
    self._cancelled = False

  def exchange(
    self,
    messages: Iterable[bytes],
    take: Callable[[bytes], None],
    on_end: Callable[[], None],
  ) -> None:
    """Sends messages in gRPC's thread and receives in this one; call it once.

    `take` gets each response and must not wait. After the last, `on_end` is
    called, and then `messages` must end. Raises the first failure of
    `messages`, `take` or the call (`grpc.RpcError`).
    """
    failures: list[Exception] = []

    def requests() -> Iterator[bytes]:
      try:
        yield from messages
      except Exception as e:
        failures.append(e)
        self.cancel()

    try:
      self._call = self._channel.stream_stream(self._method)(requests())
      # Another thread may have cancelled before `_call` was set.
      if self._cancelled:
        self._call.cancel()
      for response in self._call:
        take(response)
    except Exception as e:
      failures.append(e)
    finally:
      self.cancel()
      on_end()
    if failures:
      raise failures[0]

  def cancel(self) -> None:
    """Ends the stream; `exchange` raises CANCELLED."""
    self._cancelled = True
    if self._call is not None:
      self._call.cancel()

  def close(self) -> None:
    """Closes the connection; `exchange` must have ended."""
    self._channel.close()
