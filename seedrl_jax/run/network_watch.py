"""Finds a network that has died: dead units, one value for all observations."""

from collections.abc import Mapping

# A network has died if all of the last reports say so.
_REPORTS = 5
_DEAD_SHARE = 0.5
_DEVIATION_SHARE = 0.1
_PAGE = 'docs/metrics.md#a-network-that-has-died'


class NetworkWatch:
  """Looks at a run's reports; `value_deviation` is the first one's."""

  def __init__(self, value_deviation: float | None):
    """Goes on from an earlier start's `value_deviation`; None: from none."""
    self.value_deviation = value_deviation
    self._reports = 0
    self._has_warned = False

  def metrics(self, metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns what a report adds to the metrics of the network."""
    deviation = metrics.get('health/value_deviation')
    if deviation is None:
      return {}
    if self.value_deviation is None:
      self.value_deviation = deviation
    share = deviation / max(self.value_deviation, 1e-8)
    return {'health/value_deviation_share': share}

  def warning(self, metrics: Mapping[str, float | None]) -> str:
    """Takes a report; returns the warning, once in a start, else ''."""
    dead = metrics.get('health/dead_share') or 0.0
    share = metrics.get('health/value_deviation_share')
    is_dead = dead > _DEAD_SHARE and (share or 0.0) < _DEVIATION_SHARE
    self._reports = self._reports + 1 if is_dead and share is not None else 0
    if self._reports < _REPORTS or self._has_warned:
      return ''
    self._has_warned = True
    return (
      f'The network has died: {dead:.0%} of the units of its last dense layer '
      'are zero for all observations, and its value is nearly the same for all '
      f'({share:.1%} of its first deviation). What to do: {_PAGE}'
    )
