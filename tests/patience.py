"""How long tests wait for what a correct program does at once."""

import time
from collections.abc import Callable

# Seconds; only a test that has already failed waits for so long. Shorter than
# `faulthandler_timeout`, so that the test says what did not come.
PATIENCE = 300.0


def wait_until(predicate: Callable[[], bool], pause: float = 0.0) -> None:
  """Lets other threads and processes run until `predicate()` is true."""
  deadline = time.monotonic() + PATIENCE
  while not predicate():
    assert time.monotonic() < deadline, 'what was waited for never came'
    time.sleep(pause)
