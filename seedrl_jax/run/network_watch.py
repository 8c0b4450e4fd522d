"""Warns if the network has died: dead units and nearly constant values."""

import collections
import math
from collections.abc import Mapping

import numpy as np

# The means of this many reports count. A dying network's shares vary much from
# batch to batch: on Boxing, 0.33 to 0.89 within 100,000 frames.
_NUM_REPORTS = 5
# In MiniGrid, networks with 0.54 have learned.
_DEAD_SHARE = 0.6
_STD_RATIO = 0.1
_PAGE = 'docs/metrics.md#a-network-that-has-died'


class NetworkWatch:
  """Checks each report for the two signs of a dead network.

  Attributes:
    value_std: standard deviation of the values in the run's first report; None
      before it.
  """

  def __init__(self, value_std: float | None):
    """Continues with `value_std` of an earlier start; None if new."""
    self.value_std = value_std
    # Dead share and `value_std_ratio` of the last reports.
    self._signs: collections.deque[tuple[float, float]] = collections.deque(
      maxlen=_NUM_REPORTS
    )
    self._has_warned = False

  def metrics(self, metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns `value_std` relative to the run's first report."""
    value_std = metrics.get('health/value_std')
    # Only a network that is about to fail has an infinite one.
    if value_std is None or not math.isfinite(value_std):
      return {}
    if not self.value_std:
      self.value_std = value_std
    return {'health/value_std_ratio': value_std / (self.value_std or 1.0)}

  def warning(self, metrics: Mapping[str, float | None]) -> str:
    """Checks a report; returns a warning, at most once per start, or ''."""
    # Reports without a measurement do not count.
    dead = metrics.get('health/dead_share')
    ratio = metrics.get('health/value_std_ratio')
    if dead is None or ratio is None:
      return ''
    self._signs.append((dead, ratio))
    dead, ratio = np.mean(self._signs, axis=0)
    is_dead = dead > _DEAD_SHARE and ratio < _STD_RATIO
    if len(self._signs) < _NUM_REPORTS or not is_dead or self._has_warned:
      return ''
    self._has_warned = True
    return (
      f'The network has died: {dead:.0%} of the units in its last dense layer '
      'are 0 for all observations, and the standard deviation of its values is '
      f"{ratio:.1%} of the first report's. To fix it, see {_PAGE}."
    )
