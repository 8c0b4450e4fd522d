"""Processor time that a virtual machine does not get."""

import pathlib
import re

_STAT = pathlib.Path('/proc/stat')
# Ticks of all processors: user, nice, system, idle, iowait, irq, softirq and
# steal. The guests' time that follows is part of the user's.
_CPU = re.compile(r'cpu +((?:\d+\s+){7}\d+)')


class StealClock:
  """Measures the share of this machine's processor time that is stolen.

  That is time in which the machine had work, but its processors worked for
  other guests of the same host.
  """

  def __init__(self, path: pathlib.Path = _STAT):
    self._path = path
    self._last = self._read()

  def share(self) -> float:
    """Returns the share since the last call, 0..1; 0 if it is unknown."""
    last_stolen, last_total = self._last
    self._last = stolen, total = self._read()
    if total <= last_total:
      return 0.0
    return max(0.0, (stolen - last_stolen) / (total - last_total))

  def _read(self) -> tuple[int, int]:
    """Returns the ticks stolen and all ticks; zeros if they are unknown."""
    try:
      match = _CPU.match(self._path.read_text())
    except OSError:
      match = None
    ticks = [int(field) for field in match[1].split()] if match else [0]
    return ticks[-1], sum(ticks)
