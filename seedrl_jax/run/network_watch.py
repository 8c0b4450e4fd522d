"""Warns if the network has died: dead units and nearly constant values."""

import math
from collections.abc import Mapping

# The network counts as dead if this many reports in a row show both signs.
_MIN_REPORTS = 5
_DEAD_SHARE = 0.5
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
    self._num_dead_reports = 0
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
    is_dead = dead > _DEAD_SHARE and ratio < _STD_RATIO
    self._num_dead_reports = self._num_dead_reports + 1 if is_dead else 0
    if self._num_dead_reports < _MIN_REPORTS or self._has_warned:
      return ''
    self._has_warned = True
    return (
      f'The network has died: {dead:.0%} of the units in its last dense layer '
      'are 0 for all observations, and the standard deviation of its values is '
      f"{ratio:.1%} of the first report's. To fix it, see {_PAGE}."
    )
