"""Keeps a table's samples near a ratio to its inserts.

The rule is Reverb's SampleToInsertRatio (Cassirer et al. 2021, arXiv
2102.04736, section 3.4), made safe for whole blocks and batches.
"""

import math

from seedrl_jax.replay import table_configs


class RateLimiter:
  """Decides what may pass; called with the table's lock held.

  Let `debt = inserts * samples_per_insert - samples`. An insert passes if the
  debt stays at or below `centre + buffer`, a batch if it stays at or above
  `centre - buffer`; `centre` is the debt after `min_size` inserts and no
  samples.

  For blocks worth `w = width * samples_per_insert` and batches of b, neither
  passes if `centre + buffer - w < debt < centre - buffer + b`. The buffer is at
  least `(w + b) / 2`, so that no such state exists.
  """

  def __init__(self, config: table_configs.ReplayConfig, block_width: int):
    # Unrolls ever inserted into and sampled from the table.
    self.inserts = self.samples = 0
    self._config = config
    self._block_width = block_width
    self._batch_size = 0

  def widen(self, batch_size: int) -> None:
    """Allows for batches of `batch_size`."""
    self._batch_size = max(self._batch_size, batch_size)

  @property
  def buffer(self) -> float:
    """The greatest distance of the debt from its centre."""
    ratio = self._config.samples_per_insert
    least = (self._block_width * ratio + self._batch_size) / 2
    return max(self._config.tolerance * self._centre, least)

  @property
  def _centre(self) -> float:
    return self._config.min_size * self._config.samples_per_insert

  @property
  def _debt(self) -> float:
    return self.inserts * self._config.samples_per_insert - self.samples

  def can_insert(self, n: int, size: int, drawable: float = math.inf) -> bool:
    """Returns whether n unrolls may be inserted now.

    `size` unrolls are in the table, including those being inserted, and
    `max_times_sampled` still allows `drawable` samples.
    """
    ratio = self._config.samples_per_insert
    if ratio == 0:
      return True
    # Only inserts help if no batch can be drawn, whatever the ratio.
    if size < self._config.min_size or drawable < self._batch_size:
      return True
    return self._debt + n * ratio <= self._centre + self.buffer

  def can_sample(self, n: int, size: int, drawable: float = math.inf) -> bool:
    """Returns whether n samples may be drawn now; see `can_insert`."""
    if size < self._config.min_size or drawable < n:
      return False
    if self._config.samples_per_insert == 0:
      return True
    return self._debt - n >= self._centre - self.buffer
