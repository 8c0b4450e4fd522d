"""Polls a Reverb server for what others did to a table while a thread waits.

Without other processes the store's own counts are right, and rare polls do.
"""

import threading
import time
from collections.abc import Sequence

from seedrl_jax.replay.reverb.client import tables as tables_lib

# Seconds between polls while no other process is known to use the table.
_ALONE = 0.1
# While others use it: the first pause after news, and the longest.
_FIRST, _LONGEST = 0.005, 0.02
# Seconds after news for which others count as present.
_NOTICED = 2.0


class TableInfoPoller:
  """Keeps the tables' counts up to date in a thread, `reverb-poll`."""

  def __init__(
    self, tables: Sequence[tables_lib.ReverbTable], wait_begun: threading.Event
  ):
    """Starts the thread; `wait_begun` is set when a thread begins to wait."""
    self._tables = tables
    self._begun = wait_begun
    self._closed = threading.Event()
    self._thread = threading.Thread(
      target=self._run, name='reverb-poll', daemon=True
    )
    self._thread.start()

  def close(self) -> None:
    self._closed.set()
    self._begun.set()
    self._thread.join()

  def _run(self) -> None:
    pause, noticed = _ALONE, -_NOTICED
    while not self._closed.is_set():
      if time.monotonic() - noticed < _NOTICED:
        # A thread that begins to wait starts the next poll at once.
        if self._begun.wait(pause):
          pause = _FIRST
      else:
        pause = _ALONE
        self._closed.wait(pause)
      self._begun.clear()
      waited_for = [t for t in self._tables if t.limiter.waiting]
      if sum(table.correct() for table in waited_for):
        pause, noticed = _FIRST, time.monotonic()
      else:
        pause = min(2 * pause, _LONGEST)
