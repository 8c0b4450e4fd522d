"""The interface of a transport, and sending and receiving over it at once."""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import grpc

Buffer = bytes | memoryview

# Seconds in which a connection that cannot be written to any more gives what
# had arrived before, such as the server's reason.
_GRACE = 20.0


class StreamError(grpc.RpcError):
  """A stream ended with an error; has what gRPC's own errors have."""

  def __init__(self, code: grpc.StatusCode, details: str):
    """Takes the status and the server's words, or ours if it had none."""
    super().__init__(f'{code.name}: {details}')
    self._code = code
    self._details = details

  def code(self) -> grpc.StatusCode:
    """Returns the status."""
    return self._code

  def details(self) -> str:
    """Returns the server's words, or ours if it had none."""
    return self._details


class Stream(Protocol):
  """A bidirectional stream of messages over a connection of its own.

  One thread may send while another receives; any thread may cancel. All
  methods but `cancel` and `close` raise `grpc.RpcError` if the stream failed;
  the error of `receive` is the server's reason.
  """

  def __init__(self, address: str, method: str):
    """Prepares a stream of a method at 'host:port'; connects to nothing."""

  def begin(self, timeout: float) -> None:
    """Connects, or leaves it to `receive` to tell that it could not.

    To be called once, before `send` and `receive`.

    Args:
      timeout: seconds that each step may take until the server has answered.
    """

  def send(self, parts: Sequence[Buffer]) -> None:
    """Sends a message made of `parts`; waits while the server takes no more."""

  def receive(self) -> memoryview | None:
    """Returns the next message, or None after the last."""

  def cancel(self) -> None:
    """Ends the stream; what waits in it ends with CANCELLED."""

  def close(self) -> None:
    """Frees the connection, when nobody sends or receives any more."""


def exchange(
  stream: Stream,
  messages: Iterable[Sequence[Buffer]],
  take: Callable[[memoryview], None],
  on_end: Callable[[], None],
  name: str,
) -> None:
  """Sends messages while another thread receives; raises what failed first.

  Args:
    stream: has begun; is cancelled in the end.
    messages: each in parts; must end after `on_end`.
    take: gets each response in the thread `name`; must not wait.
    on_end: called in that thread when nothing more will come.
  """
  failures: list[BaseException] = []

  def receive() -> None:
    try:
      while (response := stream.receive()) is not None:
        take(response)
    except BaseException as e:
      failures.append(e)
    finally:
      # What is being sent may wait for room that never comes.
      stream.cancel()
      on_end()

  thread = threading.Thread(target=receive, name=name, daemon=True)
  thread.start()
  try:
    for message in messages:
      stream.send(message)
  except grpc.RpcError:
    # The last response may say why.
    thread.join(_GRACE)
  finally:
    if thread.is_alive():
      stream.cancel()
    thread.join()
  if failures:
    raise failures[0]
