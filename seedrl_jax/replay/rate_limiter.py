"""Keeps samples and inserts of a table near a ratio, as Reverb does.

The rule is that of Reverb's SampleToInsertRatio
(Cassirer et al. 2021, arXiv 2102.04736, section 3.4), made safe for whole
blocks and whole batches.
"""

import dataclasses
import math

from seedrl_jax.replay import table_configs


@dataclasses.dataclass
class Counts:
  """Unrolls that a table has ever been given, and has ever handed out."""

  inserts: int = 0
  samples: int = 0


class RateLimiter(Counts):
  """Decides what may pass; called with the table's lock held.

  Let `debt = inserts * samples_per_insert - samples`. An insert of n passes
  if the debt stays at or below `centre + buffer`, a batch if it stays at or
  above `centre - buffer`; `centre` is the debt when `min_size` unrolls were
  inserted and none was sampled.

  If a block is worth `w = width * samples_per_insert` of debt and the
  largest batch is b, neither could pass in a state with
  `centre + buffer - w < debt < centre - buffer + b`. No such state exists
  if `2 * buffer >= w + b`, which is the least that the buffer is given.
  """

  def __init__(self, config: table_configs.ReplayConfig, block_width: int):
    """Starts before the first insert, of blocks of `block_width` unrolls."""
    super().__init__()
    self._config = config
    self._block_width = block_width
    self._batch_size = 0

  def widen(self, batch_size: int) -> None:
    """Makes room for batches of `batch_size`."""
    self._batch_size = max(self._batch_size, batch_size)

  @property
  def buffer(self) -> float:
    """How far the debt may be from its centre."""
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
    """Whether n unrolls may be inserted now.

    Args:
      n: how many.
      size: unrolls in the table, including those being inserted.
      drawable: samples that can be drawn of them (`max_times_sampled`).
    """
    ratio = self._config.samples_per_insert
    if ratio == 0:
      return True
    # While no batch can be drawn whatever the ratio, only inserts help.
    if size < self._config.min_size or drawable < self._batch_size:
      return True
    return self._debt + n * ratio <= self._centre + self.buffer

  def can_sample(self, n: int, size: int, drawable: float = math.inf) -> bool:
    """Whether n samples may be drawn now; arguments as in `can_insert`."""
    if size < self._config.min_size or drawable < n:
      return False
    if self._config.samples_per_insert == 0:
      return True
    return self._debt - n >= self._centre - self.buffer
