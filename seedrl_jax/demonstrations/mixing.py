"""Batches that contain demonstrations (R2D3, arXiv 1909.01387)."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from seedrl_jax import types
from seedrl_jax.demonstrations import folder
from seedrl_jax.replay import base, blocks, table_configs

# Tolerance for shares that were typed as decimals.
_ROUNDING = 1e-3


def run_tables(
  config: types.Config, lock_step: bool = False
) -> list[table_configs.TableConfig]:
  """Returns the configs of all tables of a run, the unrolls' first.

  Raises ValueError if the configuration of demonstrations is invalid.
  """
  unrolls = table_configs.table_config(config, lock_step)
  section = config.demonstrations
  if not (section.fraction or section.path):
    return [unrolls]
  advice = ''
  if not 0 < section.fraction < 1:
    advice = (
      'give a number above 0 and below 1, as 0.25, if there are demonstrations'
    )
  elif unrolls.sampler == 'fifo':
    advice = (
      'a fifo queue cannot be mixed with demonstrations; take '
      '--config.replay.sampler=prioritized or uniform'
    )
  elif not section.path and not config.replay.address:
    advice = (
      'there are none; give --config.demonstrations.path, a folder of '
      'seedrl record'
    )
  if advice:
    raise ValueError(
      f'--config.demonstrations.fraction={section.fraction}: {advice}.'
    )
  max_size = section.max_size
  if max_size is None:
    if not section.path:
      raise ValueError(
        '--config.demonstrations.max_size: give it, in sequences, if there is '
        'no --config.demonstrations.path to count them in.'
      )
    max_size = folder.read_manifest(section.path).sequences
  demonstrations = table_configs.ReplayConfig(
    name=folder.TABLE,
    sampler=unrolls.sampler,
    max_size=max_size,
    samples_per_insert=0.0,
    priority_exponent=unrolls.priority_exponent,
    # Sequences are inserted one by one.
    block_width=1,
  )
  return [unrolls, demonstrations]


def make_sampler(
  store: base.TrajectoryStore,
  batch_size: int,
  num_blocks: int,
  demonstrations_per_block: int,
) -> base.TrajectorySampler:
  """Returns the sampler of batches for `num_blocks` training devices."""
  num_demonstrations = demonstrations_per_block * num_blocks
  num_unrolls = batch_size - num_demonstrations
  unrolls = store.table(table_configs.TABLE).sampler(num_unrolls, num_blocks)
  if not num_demonstrations:
    return unrolls
  demonstrations = store.table(folder.TABLE).sampler(
    num_demonstrations, num_blocks
  )
  width = batch_size // num_blocks
  middle = width - demonstrations_per_block
  return MixedSampler(
    [(slice(0, middle), unrolls), (slice(middle, width), demonstrations)],
    num_blocks,
    blocks.BlockPool(blocks.UnrollLayout(store.unroll_spec), width),
  )


def demonstrations_per_block(config: types.Config, num_blocks: int) -> int:
  """Returns how many columns of each device's block are demonstrations.

  Raises ValueError if that is not a whole number, or leaves no unrolls.
  """
  fraction = config.demonstrations.fraction
  width = config.batch_size // num_blocks
  count = round(fraction * width)
  if not fraction or (
    0 < count < width and abs(fraction * width - count) < _ROUNDING
  ):
    return count
  start = (
    f'--config.demonstrations.fraction={fraction}: of the {width} sequences '
    'that a training device gets of a batch'
  )
  if width == 1:
    raise ValueError(f'{start}, none is left; raise --config.batch_size.')
  nearest = min(max(count, 1), width - 1)
  raise ValueError(
    f'{start}, that is {fraction * width:g}; give {nearest / width:g} (that is '
    f'{nearest}).'
  )


@dataclasses.dataclass(frozen=True)
class MixedSampler(base.TrajectorySampler):
  """Thread-safe sampler of blocks with samples of several tables.

  Attributes:
    parts: columns of every block, and the sampler that fills them.
  """

  parts: Sequence[tuple[slice, base.TrajectorySampler]]
  num_blocks: int
  pool: blocks.BlockPool

  def sample(self, wait: bool = True) -> base.Sample:
    """See `TrajectorySampler`.

    Unrolls come first: only they are rejected once there are demonstrations.
    """
    samples = []
    for columns, sampler in self.parts:
      sample = sampler.sample(wait)
      assert isinstance(sample, base.ReplaySample)
      samples.append((columns, sample))
    # Copies the parts to common blocks.
    mixed = [self.pool.take() for _ in range(self.num_blocks)]
    for columns, sample in samples:
      for source, target in zip(sample.blocks, mixed, strict=True):
        views = map(self.pool.layout.rows, (source, target))
        for values, rows in zip(*views, strict=True):
          rows[columns] = values
      sample.release()

    def update(priorities: np.ndarray) -> None:
      # By place in the batch: two tables may use the same key.
      by_block = priorities.reshape(self.num_blocks, -1)
      for columns, sample in samples:
        sample.update_priorities(by_block[:, columns].reshape(-1))

    return base.ReplaySample(
      blocks=mixed,
      on_release=self.pool.give_back,
      keys=self._join([s.keys for _, s in samples]),
      probabilities=self._join([s.probabilities for _, s in samples]),
      table_size=self._join([s.table_size for _, s in samples]),
      priorities=self._join([s.priorities for _, s in samples]),
      on_update=update,
    )

  def _join(self, parts: Sequence[np.ndarray]) -> np.ndarray:
    """Returns `[B]` in the order of the blocks' columns."""
    by_block = [x.reshape(self.num_blocks, -1) for x in parts]
    return np.concatenate(by_block, axis=1).reshape(-1)
