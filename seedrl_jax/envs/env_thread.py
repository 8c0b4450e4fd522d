"""A thread that owns environments."""

import asyncio
import collections
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar('T')

# Seconds for the thread to end.
END_SECONDS = 10.0


class EnvThread:
  """A daemon thread that makes calls one after another.

  Some environments work only in the thread that made them: they use SQLite,
  asyncio or OpenGL. The thread ends if a call raises, and after `interrupt`.

  Attributes:
    closing: what the thread does at its end.
  """

  def __init__(self, name: str, changed: threading.Condition):
    """Starts the thread; it notifies `changed` after each call."""
    self.closing = contextlib.ExitStack()
    self._changed = changed
    self._calls: collections.deque[Callable[[], Any]] = collections.deque()
    self._deadline: float | None = None
    self._failure: BaseException | None = None
    self._close_failure: BaseException | None = None
    self._thread = threading.Thread(target=self._run, name=name, daemon=True)
    self._thread.start()

  def submit(self, call: Callable[[], Any]) -> None:
    """Lets the thread make a call; does not wait."""
    with self._changed:
      self._calls.append(call)
      self._changed.notify_all()

  def check(self) -> None:
    """Raises what ended the thread, if a call did."""
    if self._failure is not None:
      raise self._failure

  def interrupt(self) -> None:
    """Lets the thread end after the call that it makes; does not wait."""
    with self._changed:
      if self._deadline is None:
        self._deadline = time.monotonic() + END_SECONDS
      self._changed.notify_all()

  def join(self, seconds: float | None = None) -> bool:
    """Waits until the thread has ended, or returns False if it hangs.

    `seconds` None: until `END_SECONDS` after `interrupt`. Raises what `closing`
    raised.
    """
    if seconds is None:
      assert self._deadline is not None, 'interrupt first'
      seconds = max(0.0, self._deadline - time.monotonic())
    self._thread.join(seconds)
    if self._close_failure is not None:
      raise self._close_failure
    return not self._thread.is_alive()

  def _run(self) -> None:
    # An environment may ask for one, which only the main thread has.
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    self.closing.callback(loop.close)
    try:
      while (call := self._next_call()) is not None:
        call()
    except BaseException as e:
      self._failure = e
      with self._changed:
        self._changed.notify_all()
    try:
      self.closing.close()
    except BaseException as e:
      self._close_failure = e

  def _next_call(self) -> Callable[[], Any] | None:
    with self._changed:
      # Of the last call.
      self._changed.notify_all()
      while not self._calls and self._deadline is None:
        self._changed.wait()
      return None if self._deadline is not None else self._calls.popleft()
