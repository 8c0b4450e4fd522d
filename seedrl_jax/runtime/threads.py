"""Groups of named threads that stop together and report their failures."""

import dataclasses
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Failure:
  """The exception that ended a thread, with its traceback as `text`."""

  thread: str
  error: BaseException
  text: str


class ThreadGroup:
  """Starts threads, stops them together and keeps the first failure.

  Once the group is stopping, exceptions of the types `ends` are no failures.
  """

  def __init__(self, ends: tuple[type[BaseException], ...] = ()):
    self._ends = ends
    self._threads: list[threading.Thread] = []
    self._stopping = threading.Event()
    self._lock = threading.Lock()
    self.failure: Failure | None = None  # the first
    self._wakers: list[Callable[[], None]] = []

  @property
  def alive(self) -> list[str]:
    """Names of the threads that still run."""
    return [t.name for t in self._threads if t.is_alive()]

  def should_stop(self) -> bool:
    """Returns whether the group is stopping."""
    return self._stopping.is_set()

  def on_stop(self, waker: Callable[[], None]) -> None:
    """Registers a function that wakes waiting threads when the group stops."""
    self._wakers.append(waker)

  def start(
    self, name: str, target: Callable[[], None], core: int | None = None
  ) -> None:
    """Starts a thread that runs `target` once, on processor `core` if given."""

    def run() -> None:
      if core is not None:
        os.sched_setaffinity(0, {core})
      target()

    thread = threading.Thread(
      target=self._guard, args=(name, run), name=name, daemon=True
    )
    self._threads.append(thread)
    thread.start()

  def run(self, name: str, target: Callable[[], object]) -> None:
    """Runs `target` in the calling thread; stops the group if it fails.

    Raises a `KeyboardInterrupt` again, as the user wants no more waits.
    """
    error = self._guard(name, target)
    if isinstance(error, KeyboardInterrupt):
      raise error

  def stop(self) -> None:
    """Stops the group and calls all wakers, even if one raises."""
    with self._lock:
      if self._stopping.is_set():
        return
      self._stopping.set()
    for waker in self._wakers:
      self._guard('stop', waker)

  def wait(self, timeout: float) -> bool:
    """Waits until the group is stopping; returns whether it is."""
    return self._stopping.wait(timeout)

  def join(self, timeout: float) -> list[str]:
    """Waits `timeout` seconds in all; returns stacks of unfinished threads."""
    deadline = time.monotonic() + timeout
    for thread in self._threads:
      thread.join(max(0.0, deadline - time.monotonic()))
    frames = sys._current_frames()
    stuck = []
    for thread in self._threads:
      if thread.is_alive() and thread.ident in frames:
        stack = ''.join(traceback.format_stack(frames[thread.ident]))
        stuck.append(f'Thread {thread.name} did not end:\n{stack}')
    return stuck

  def _guard(
    self, name: str, target: Callable[[], object]
  ) -> BaseException | None:
    """Runs `target`; stops the group if it fails, and returns the error."""
    try:
      target()
    except BaseException as e:
      if self.should_stop() and isinstance(e, self._ends):
        return None
      with self._lock:
        if self.failure is None:
          self.failure = Failure(name, e, traceback.format_exc())
      self.stop()
      return e
    return None
