"""A thread that owns environments."""

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from concurrent import futures
from typing import TypeVar

T = TypeVar('T')

# Seconds from `interrupt` until an environment counts as hanging.
END_SECONDS = 10.0


class EnvThread:
  """A daemon thread that makes calls one after another until `interrupt`.

  Environments that use SQLite, asyncio or OpenGL work only in the thread that
  made them.

  Attributes:
    closing: what the thread does at its end.
  """

  def __init__(self, name: str):
    self.closing = contextlib.ExitStack()
    # None ends the thread.
    self._calls: queue.SimpleQueue[Callable[[], None] | None]
    self._calls = queue.SimpleQueue()
    self._deadline: float | None = None
    self._failure: BaseException | None = None
    self._thread = threading.Thread(target=self._run, name=name, daemon=True)
    self._thread.start()

  def submit(self, call: Callable[[], None]) -> None:
    """Lets the thread make a call, which must not raise; does not wait."""
    self._calls.put(call)

  def call(self, function: Callable[[], T]) -> T:
    """Returns what a function returns in the thread, or raises what it does."""
    future = futures.Future[T]()

    def run() -> None:
      try:
        future.set_result(function())
      except BaseException as e:
        future.set_exception(e)

    self.submit(run)
    return future.result()

  def interrupt(self) -> None:
    """Lets the thread end after the call that it makes; does not wait."""
    if self._deadline is None:
      self._deadline = time.monotonic() + END_SECONDS
      self._calls.put(None)

  def join(self, seconds: float | None = None) -> bool:
    """Waits for the end after `interrupt`; returns whether it has come.

    `seconds` None means until `END_SECONDS` after `interrupt`. Raises what
    `closing` raised.
    """
    if seconds is None:
      assert self._deadline is not None, 'Interrupt it first.'
      seconds = max(0.0, self._deadline - time.monotonic())
    self._thread.join(seconds)
    if self._failure is not None:
      raise self._failure
    return not self._thread.is_alive()

  def _run(self) -> None:
    # Only the main thread gets an event loop of its own accord.
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    self.closing.callback(loop.close)
    while (call := self._calls.get()) is not None and self._deadline is None:
      call()
    try:
      self.closing.close()
    except BaseException as e:
      self._failure = e
