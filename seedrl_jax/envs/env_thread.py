"""A thread that owns environments."""

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from concurrent import futures
from typing import TypeVar

from seedrl_jax.envs import base

_T = TypeVar('_T')

# Seconds that a call of an environment may take after a stop.
END_SECONDS = 10.0
_SLICE_SECONDS = 0.1


def wait_while_busy(
  wait: Callable[[float], bool], running: Callable[[], list[int]], name: str
) -> None:
  """Waits for an end, as long as environments return from their calls.

  `wait` waits for at most this many seconds, and returns whether the end has
  come; `running` returns the ids of the environments that are called now.

  Raises EnvironmentFailed if they stay the same for `END_SECONDS`.
  """
  last, start = running(), time.monotonic()
  while not wait(_SLICE_SECONDS):
    current, now = running(), time.monotonic()
    if current != last:
      last, start = current, now
    elif now - start >= END_SECONDS:
      raise base.EnvironmentFailed(
        f'Environment {", ".join(map(str, last)) or "?"} of {name} did not '
        f'return within {END_SECONDS:g} s after the stop: give waits in the '
        'environment a limit.'
      )


class EnvThread:
  """A daemon thread that makes calls one after another until `interrupt`.

  Environments that use SQLite, asyncio or OpenGL work only in the thread that
  made them.
  """

  def __init__(self, name: str):
    self.closing = contextlib.ExitStack()  # what the thread does at its end
    # None ends the thread.
    self._calls = queue.SimpleQueue[Callable[[], None] | None]()
    self._is_interrupted = False
    self._failure: BaseException | None = None
    self._thread = threading.Thread(target=self._run, name=name, daemon=True)
    self._thread.start()

  def submit(self, call: Callable[[], None]) -> None:
    """Lets the thread make a call, which must not raise; does not wait.

    Raises StreamClosed after `interrupt`.
    """
    self._calls.put(call)
    # After `put`: a call behind the None of `interrupt` is lost.
    self._check_open()

  def call(self, function: Callable[[], _T]) -> _T:
    """Returns what a function returns in the thread, or raises what it does.

    Raises StreamClosed after `interrupt`.
    """
    future = futures.Future[_T]()

    def run() -> None:
      try:
        self._check_open()
        future.set_result(function())
      except BaseException as e:
        future.set_exception(e)

    self.submit(run)
    return future.result()

  def interrupt(self) -> None:
    """Lets the thread end after the calls submitted so far; does not wait."""
    if not self._is_interrupted:
      self._is_interrupted = True
      self._calls.put(None)

  def join(self, seconds: float) -> bool:
    """Waits for the end after `interrupt`; returns whether it has come.

    Raises what `closing` raised.
    """
    self._thread.join(seconds)
    if self._failure is not None:
      raise self._failure
    return not self._thread.is_alive()

  def _check_open(self) -> None:
    if self._is_interrupted:
      raise base.StreamClosed(f'The thread {self._thread.name} is interrupted.')

  def _run(self) -> None:
    # Only the main thread gets an event loop by itself.
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    self.closing.callback(loop.close)
    while (call := self._calls.get()) is not None:
      call()
    try:
      self.closing.close()
    except BaseException as e:
      self._failure = e


def call_in_thread(name: str, function: Callable[[], _T]) -> _T:
  """Returns what a function returns in an `EnvThread` of its own."""
  thread = EnvThread(name)
  try:
    return thread.call(function)
  finally:
    thread.interrupt()
