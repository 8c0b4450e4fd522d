"""Opens a run's writers, and keeps the run from failing with one."""

import functools
import pathlib
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures

import ml_collections

from seedrl_jax import types
from seedrl_jax.runtime import settings
from seedrl_jax.runtime.writers import base

# Makes the writer of a work directory and its configuration.
Make = Callable[[pathlib.Path, ml_collections.ConfigDict], base.Writer]
_Call = Callable[[base.Writer], None]

# Seconds for a writer to begin, and for all of them to end.
_OPEN_SECONDS = 20.0
_CLOSE_SECONDS = 5.0
# Reports that may wait for a slow writer: half an hour's.
_MOST_CALLS = 1000
_FLAG = '--config.log.writers'


class NotOpened(types.Explained, RuntimeError):
  """A writer could not begin."""


def load(names: Sequence[str]) -> dict[str, Make]:
  """Returns the functions that make the named writers; or raises ValueError."""
  makes = {}
  for name in names:
    reference = base.BUILT_IN.get(name, name)
    makes[name] = settings.load_function(f'{_FLAG}={name}', reference)
  return makes


class MetricsLog:
  """Gives reports to a run's writers, each of which has a thread.

  A writer that fails or hangs loses only its own rows. It gets the next ones
  all the same, and may work again.
  """

  def __init__(
    self,
    makes: Mapping[str, Make],
    workdir: pathlib.Path,
    config: ml_collections.ConfigDict,
    say: Callable[[str], None],
  ):
    """Opens the writers.

    `say` takes their descriptions, and a sentence on one that fails later.

    Raises NotOpened if one cannot begin; the others are closed.
    """
    self._threads: list[_WriterThread] = []
    for name, make in makes.items():
      begin = functools.partial(make, workdir, config)
      try:
        self._threads.append(_WriterThread(name, begin, say))
      except NotOpened:
        self.close()
        raise

  def roll_back(self, updates: int, frames: int) -> None:
    """Drops rows later than a checkpoint; see `Writer.roll_back`."""
    for thread in self._threads:
      thread.call(lambda writer: writer.roll_back(updates, frames))

  def write(self, row: base.Row) -> None:
    """Has one report written; does not wait for it."""
    for thread in self._threads:
      # A copy, which the writer may change.
      thread.call(lambda writer: writer.write(dict(row)))

  def close(self) -> None:
    """Closes the writers; waits some seconds for them in all."""
    for thread in self._threads:
      thread.call(None)
    deadline = time.monotonic() + _CLOSE_SECONDS
    for thread in self._threads:
      thread.join(deadline)


class _WriterThread:
  """Makes a writer and calls it, all in one daemon thread.

  Libraries may want one thread, as SQLite does.
  """

  def __init__(
    self,
    name: str,
    make: Callable[[], base.Writer],
    say: Callable[[str], None],
  ):
    """Starts the thread; raises `NotOpened` if the writer cannot begin."""
    self._name = name
    self._say = say
    # One thread fills it, and not beyond `_MOST_CALLS`. None: to close.
    self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
    self._is_behind = self._is_failing = self._is_abandoned = False
    opening: futures.Future[str] = futures.Future()
    self._thread = threading.Thread(
      target=self._run, args=(make, opening), name=f'writer-{name}', daemon=True
    )
    self._thread.start()
    futures.wait([opening], _OPEN_SECONDS)
    if not opening.done():
      # It is closed if it ever begins.
      self.call(None)
      raise NotOpened(
        f'{_FLAG}={name} cannot begin: it is not done after '
        f'{_OPEN_SECONDS:.0f} s.'
      )
    if error := opening.exception():
      reason = settings.error_text(error)
      raise NotOpened(f'{_FLAG}={name} cannot begin: {reason}.') from error
    if description := opening.result():
      say(description)

  def call(self, call: _Call | None) -> None:
    """Has the writer called, unless it is too far behind."""
    is_behind = call is not None and self._calls.qsize() >= _MOST_CALLS
    if not is_behind:
      self._calls.put(call)
    elif not self._is_behind:
      self._say(
        f'The writer {self._name} is {_MOST_CALLS} reports behind; it misses '
        'the next ones until it is faster.'
      )
    self._is_behind = is_behind

  def join(self, deadline: float) -> None:
    """Waits for the writer to be closed; says so if it is not in time."""
    self._thread.join(max(0.0, deadline - time.monotonic()))
    if self._thread.is_alive():
      # Another run may soon write to the same files.
      self._is_abandoned = True
      self._say(
        f'The writer {self._name} is not done after {_CLOSE_SECONDS:.0f} s; '
        'the run ends without it and its last reports.'
      )

  def _run(
    self, make: Callable[[], base.Writer], opening: futures.Future[str]
  ) -> None:
    try:
      writer = make()
      opening.set_result(writer.description)
    except BaseException as e:
      opening.set_exception(e)
      return
    while not self._is_abandoned:
      call = self._calls.get()
      try:
        if call is None:
          writer.close()
        else:
          call(writer)
        self._is_failing = False
      except BaseException as e:
        # Only once until it works again.
        if not self._is_failing:
          self._say(
            f'The writer {self._name} fails: {settings.error_text(e)}; the '
            'run goes on without it until it works again.'
          )
        self._is_failing = True
      if call is None:
        return
