"""The rules of tables, and those of a run's table by its configuration."""

import dataclasses
import math
import sys
from typing import ClassVar

import ml_collections

# The table that inference writes and the learner reads.
TABLE = 'unrolls'


@dataclasses.dataclass(frozen=True)
class QueueConfig:
  """The rules of a queue of at most `max_size` unrolls."""

  name: str
  max_size: int
  sampler: ClassVar[str] = 'fifo'
  min_size: ClassVar[int] = 1
  max_times_sampled: ClassVar[int] = 1
  samples_per_insert: ClassVar[float] = 1.0
  priority_exponent: ClassVar[float] = 0.0
  block_width: ClassVar[None] = None

  def writer_width(
    self, batch_width: int, num_envs: int, lock_step: bool = False
  ) -> int:
    """Returns the width of blocks to fill; see `ReplayConfig`."""
    # The learner gets the blocks as they were filled.
    del num_envs, lock_step
    return batch_width

  def num_blocks(
    self, batch_size: int, wanted: int | None, block_width: int
  ) -> int:
    """Returns how many blocks a batch comes in; see `ReplayConfig`."""
    expected, rest = divmod(batch_size, block_width)
    if rest or expected == 0 or wanted not in (None, expected):
      raise ValueError(
        f'--config.batch_size={batch_size} in {wanted or "whole"} blocks: must '
        f'be a multiple of {block_width}, as a queue hands on blocks of so '
        'many unrolls as they were assembled.'
      )
    if batch_size > self.max_size:
      raise ValueError(
        f'--config.replay.max_size={self.max_size}: a queue must hold a batch '
        f'of {batch_size} unrolls, better two; raise it.'
      )
    return expected


@dataclasses.dataclass(frozen=True)
class ReplayConfig:
  """The rules of a replay table. The oldest unroll is always removed first.

  An unroll is drawn with probability p^exponent / sum of p^exponent (Schaul et
  al. 2016, arXiv 1511.05952, equation 1). Sizes are in unrolls.
  """

  name: str
  sampler: str  # 'uniform' or 'prioritized'
  max_size: int
  max_times_sampled: int = 0  # after which an unroll is removed; 0: never
  # Average number of samples of an unroll, kept by waits; 0: none is kept.
  samples_per_insert: float = 1.0
  # Allowed distance from that ratio, as a share of `min_size *
  # samples_per_insert`; at least what an insert and a batch need (see
  # `RateLimiter`).
  tolerance: float = 0.1
  min_size: int = 1  # before anything is sampled
  priority_exponent: float = 0.9
  block_width: int | None = None  # unrolls per insert; None: the store's

  def __post_init__(self) -> None:
    if not 1 <= self.min_size <= self.max_size:
      raise ValueError(
        f'--config.replay.min_size={self.min_size}: give 1 to max_size '
        f'({self.max_size}).'
      )
    if 0 < self.max_times_sampled < self.samples_per_insert:
      raise ValueError(
        f'--config.replay.samples_per_insert={self.samples_per_insert}: '
        f'max_times_sampled={self.max_times_sampled} never reaches that; lower '
        'one or raise the other (0: no limit).'
      )

  def writer_width(
    self, batch_width: int, num_envs: int, lock_step: bool = False
  ) -> int:
    """Returns the width of blocks to fill.

    Args:
      batch_width: unrolls of a batch per training device.
      num_envs: of the smallest stream.
      lock_step: whether acting and learning take turns.
    """
    # In lock step, nothing is sampled between the blocks of one step, so the
    # ratio would admit only the first. Otherwise, a block that takes every
    # environment at most once is full soonest.
    return num_envs if lock_step else min(batch_width, num_envs)

  def num_blocks(
    self, batch_size: int, wanted: int | None, block_width: int
  ) -> int:
    """Returns the blocks of a batch; ValueError if they cannot be `wanted`."""
    del block_width
    count = 1 if wanted is None else wanted
    if batch_size < 1 or count < 1 or batch_size % count:
      raise ValueError(
        f'--config.batch_size={batch_size}: cannot be split into {count} equal '
        'blocks; make it a multiple.'
      )
    if 0 < self.max_times_sampled * self.max_size < batch_size:
      raise ValueError(
        f'--config.replay.max_size={self.max_size}: with '
        f'max_times_sampled={self.max_times_sampled} the table never gives a '
        f'batch of {batch_size}; raise one of them.'
      )
    return count


TableConfig = QueueConfig | ReplayConfig


class RateLimiter:
  """Keeps samples near a ratio to inserts; called with the table's lock held.

  The rule is Reverb's SampleToInsertRatio (Cassirer et al. 2021, arXiv
  2102.04736, section 3.4), made safe for whole blocks and batches.

  Let `debt = inserts * samples_per_insert - samples`. An insert passes if the
  debt stays at or below `centre + buffer`, a batch if it stays at or above
  `centre - buffer`; `centre` is the debt after `min_size` inserts and no
  samples.

  For blocks worth `w = width * samples_per_insert` and batches of b, neither
  passes if `centre + buffer - w < debt < centre - buffer + b`. The buffer is at
  least `(w + b) / 2`, so that no such state exists.
  """

  def __init__(self, config: ReplayConfig, block_width: int):
    # Unrolls ever inserted into and sampled from the table.
    self.inserts = self.samples = 0
    self._config = config
    self._block_width = block_width
    self._batch_size = 0

  def widen(self, batch_size: int) -> None:
    """Allows for batches of `batch_size`."""
    self._batch_size = max(self._batch_size, batch_size)

  def bounds(self) -> tuple[float, float]:
    """Returns the least and the greatest debt."""
    ratio = self._config.samples_per_insert
    if ratio == 0:
      # Reverb uses this number, as JSON has no infinity.
      return -sys.float_info.max, sys.float_info.max
    centre = self._config.min_size * ratio
    least = (self._block_width * ratio + self._batch_size) / 2
    buffer = max(self._config.tolerance * centre, least)
    return centre - buffer, centre + buffer

  @property
  def _debt(self) -> float:
    return self.inserts * self._config.samples_per_insert - self.samples

  def can_insert(self, n: int, size: int, drawable: float = math.inf) -> bool:
    """Returns whether n unrolls may be inserted now.

    `size` unrolls are in the table, including those being inserted, and
    `max_times_sampled` still allows `drawable` samples.
    """
    # Only inserts help if no batch can be drawn, whatever the ratio.
    if size < self._config.min_size or drawable < self._batch_size:
      return True
    worth = n * self._config.samples_per_insert
    return self._debt + worth <= self.bounds()[1]

  def can_sample(self, n: int, size: int, drawable: float = math.inf) -> bool:
    """Returns whether n samples may be drawn now; see `can_insert`."""
    if size < self._config.min_size or drawable < n:
      return False
    return self._debt - n >= self.bounds()[0]


def table_config(
  config: ml_collections.ConfigDict, lock_step: bool = False
) -> TableConfig:
  """Returns the rules of the run's table; a ValueError names the wrong flag.

  In `lock_step`, acting and learning take turns.
  """
  replay = config.replay
  if replay.sampler == 'fifo':
    return _queue_config(config, lock_step)
  if replay.max_size is None:
    raise ValueError(
      f'--config.replay.max_size: a {replay.sampler} table needs it, in '
      'unrolls (as 100000).'
    )
  # Workers that train a model sample, too, but the ratio is of those that act.
  workers = config.asynchronous.workers
  acting = max(1, workers - config.asynchronous.model_workers)
  return ReplayConfig(
    name=TABLE,
    sampler=replay.sampler,
    max_size=replay.max_size,
    max_times_sampled=replay.max_times_sampled,
    samples_per_insert=replay.samples_per_insert * workers / acting,
    tolerance=replay.tolerance,
    min_size=replay.min_size,
    priority_exponent=replay.priority_exponent,
  )


def _queue_config(
  config: ml_collections.ConfigDict, lock_step: bool
) -> QueueConfig:
  for field in ('max_times_sampled', 'samples_per_insert', 'min_size'):
    if config.replay[field] != 1:
      raise ValueError(
        f"--config.replay.{field}={config.replay[field]}: a fifo queue's is 1; "
        'leave it, or choose another sampler.'
      )
  two_batches = 2 * config.batch_size
  max_size = config.replay.max_size
  if lock_step:
    # Nothing is sampled while a step completes unrolls of all environments.
    max_size = max(max_size or 0, config.env.num_envs + two_batches)
  return QueueConfig(TABLE, two_batches if max_size is None else max_size)
