"""Reads a stream's responses, and ends when the stream does.

Used by `insert_stream.py` and `sample_stream.py`. gRPC has a fault that makes
this more than a loop: where a connection is lost just as a stream begins, the
stream ends with an error but a read that waits for a response may never
return. So a thread reads, and its owner waits for the end of the stream.
"""

import threading
from collections.abc import Callable

import grpc

# Seconds that a read may take on a stream that has ended. What had arrived
# before is there at once, so this matters only where the read is stuck.
_GRACE = 2.0


class Reader:
  """Hands the responses of one stream on; used once."""

  def __init__(self, call: grpc.Call, take: Callable[[bytes], None], name: str):
    """Reads nothing yet.

    Args:
      call: the stream; iterates over raw responses.
      take: gets each response, in the reading thread; may wait.
      name: of that thread.
    """
    self._call = call
    self._take = take
    self._name = name
    self._lock = threading.Lock()
    # Where the reading thread is: waiting for a response, and which.
    self._waiting = True
    self._taken = 0
    self._abandoned = False
    self._error: BaseException | None = None
    # The stream has, or the thread is about to.
    self._ended = threading.Event()

  def run(self) -> None:
    """Reads until the stream ends; to be called by the thread that owns it.

    Raises:
      grpc.RpcError: with which the stream ended.
      BaseException: what `take` raised.
    """
    self._call.add_done_callback(lambda _: self._ended.set())
    thread = threading.Thread(target=self._read, name=self._name, daemon=True)
    thread.start()
    self._ended.wait()
    taken = -1
    thread.join(_GRACE)
    while thread.is_alive() and not self._abandon(taken):
      taken = self._taken
      thread.join(_GRACE)
    if self._error is not None:
      raise self._error
    if self._abandoned and self._call.code() != grpc.StatusCode.OK:
      raise self._call

  def _read(self) -> None:
    try:
      for response in self._call:
        with self._lock:
          if self._abandoned:
            return
          self._waiting = False
        self._take(response)
        self._waiting = True
        self._taken += 1
    except BaseException as e:
      self._error = e
    finally:
      self._ended.set()

  def _abandon(self, taken: int) -> bool:
    """Gives the thread up where it has waited since `taken` responses."""
    with self._lock:
      self._abandoned = self._waiting and self._taken == taken
      return self._abandoned
