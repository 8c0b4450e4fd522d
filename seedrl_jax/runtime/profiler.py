"""Captures a jax.profiler trace of some updates of a run."""

import pathlib
from collections.abc import Callable

import jax

# Updates before the trace starts, so that it shows the steady state.
_WARM_UP = 20


class UpdateProfiler:
  """Traces `num_updates` updates into the directory `path`."""

  def __init__(
    self, path: pathlib.Path, num_updates: int, say: Callable[[str], None]
  ):
    self._path = path
    self._num_updates = num_updates
    self._say = say
    self._seen = 0
    self._tracing = False

  def after_update(self) -> None:
    """Counts an update; starts or ends the trace."""
    if not self._num_updates:
      return
    self._seen += 1
    if self._seen == _WARM_UP:
      jax.profiler.start_trace(str(self._path))
      self._tracing = True
    elif self._seen == _WARM_UP + self._num_updates:
      self.close()

  def close(self) -> None:
    """Ends a trace that still runs."""
    if self._tracing:
      self._tracing = False
      jax.profiler.stop_trace()
      self._say(f'Trace of {self._seen - _WARM_UP} updates: {self._path}')
