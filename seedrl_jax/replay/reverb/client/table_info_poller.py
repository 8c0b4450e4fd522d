"""Asks a Reverb server what others did to a table while somebody waits here.

Made by `store.py`. Without others the store's own counts are right, and it is
enough to ask now and then; with actors that write, or a learner elsewhere that
draws, what is waited for is theirs.
"""

import threading
import time
from collections.abc import Callable, Mapping

from seedrl_jax.replay.reverb.client import client_rate_limiter

# Seconds between questions where nobody else is known of.
_ALONE = 0.1
# Where others were noticed: the first pause after news, and the longest.
_FIRST, _LONGEST = 0.005, 0.02
# Seconds for which others count as there.
_NOTICED = 2.0


class Refresher:
  """A thread, `reverb-refresh`, that keeps counts up to date."""

  def __init__(
    self,
    ledgers: Mapping[str, client_rate_limiter.Ledger],
    resync: Callable[[str, client_rate_limiter.Ledger], bool],
    begun: threading.Event,
  ):
    """Starts the thread.

    Args:
      ledgers: by table.
      resync: asks for a table; returns whether there was anything new.
      begun: set by ledgers when a thread begins to wait.
    """
    self._ledgers = ledgers
    self._resync = resync
    self._begun = begun
    self._closed = threading.Event()
    self._thread = threading.Thread(
      target=self._run, name='reverb-refresh', daemon=True
    )
    self._thread.start()

  def close(self) -> None:
    """Ends the thread."""
    self._closed.set()
    self._begun.set()
    self._thread.join()

  def _run(self) -> None:
    pause, noticed = _ALONE, -_NOTICED
    while not self._closed.is_set():
      if time.monotonic() - noticed < _NOTICED:
        # Who begins to wait need not wait for the next round.
        if self._begun.wait(pause):
          pause = _FIRST
      else:
        pause = _ALONE
        self._closed.wait(pause)
      self._begun.clear()
      waited_for = [x for x in self._ledgers.items() if x[1].waiting]
      if sum(self._resync(name, counts) for name, counts in waited_for):
        pause, noticed = _FIRST, time.monotonic()
      else:
        pause = min(2 * pause, _LONGEST)
