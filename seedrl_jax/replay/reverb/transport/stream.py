"""The interface of a transport, and a full-duplex exchange over it."""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import grpc

Buffer = bytes | memoryview

# Seconds for reading the server's reason after a failure to send.
_GRACE = 20.0


class StreamError(grpc.RpcError):
  """A failed stream's status and the server's message, or ours."""

  def __init__(self, code: grpc.StatusCode, details: str):
    super().__init__(f'{code.name}: {details}')
    self._code = code
    self._details = details

  def code(self) -> grpc.StatusCode:
    """Returns the status."""
    return self._code

  def details(self) -> str:
    """Returns the server's message, or ours."""
    return self._details


class Stream(Protocol):
  """A bidirectional stream of messages over a connection of its own.

  One thread may send while another receives; any thread may cancel. All
  methods but `cancel` and `close` raise `grpc.RpcError` if the stream failed;
  only `receive` reports the server's reason.
  """

  def begin(self, timeout: float) -> None:
    """Connects, once and first; each step may take `timeout` seconds.

    If this does not wait, `receive` raises the failure.
    """

  def send(self, parts: Sequence[Buffer]) -> None:
    """Sends a message, the concatenated `parts`; waits for flow control."""

  def receive(self) -> memoryview | None:
    """Returns the next message, or None after the last."""

  def cancel(self) -> None:
    """Ends the stream; waiting calls raise CANCELLED."""

  def close(self) -> None:
    """Closes the connection; no call may be in progress."""


def exchange(
  stream: Stream,
  messages: Iterable[Sequence[Buffer]],
  take: Callable[[memoryview], None],
  on_end: Callable[[], None],
  name: str,
) -> None:
  """Sends messages while another thread receives; raises the first failure.

  Args:
    stream: must have begun; is cancelled at the end.
    messages: each in parts; must end after `on_end`.
    take: called with each response, in the thread `name`; must not wait.
    on_end: called in that thread after the last response.
  """
  failures: list[BaseException] = []

  def receive() -> None:
    try:
      while (response := stream.receive()) is not None:
        take(response)
    except BaseException as e:
      failures.append(e)
    finally:
      # `send` may be waiting for flow control.
      stream.cancel()
      on_end()

  thread = threading.Thread(target=receive, name=name, daemon=True)
  thread.start()
  try:
    for message in messages:
      stream.send(message)
  except grpc.RpcError as e:
    # The last response may say why.
    thread.join(_GRACE)
    if thread.is_alive():
      failures.append(e)
  finally:
    if thread.is_alive():
      stream.cancel()
    thread.join()
  if failures:
    raise failures[0]
