"""Batches of which a part is demonstrations (arXiv 1909.01387).

`builder` asks `make_source` where the learner's batches come from, and where
its priorities go.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from seedrl_jax.demonstrations import folder
from seedrl_jax.replay import base, blocks, table_configs

# How far from a whole number a share may be that was typed in decimals.
_ROUNDING = 1e-3

# Takes keys, uint64 `[B]`, and priorities, float `[B]`, of a whole batch.
UpdatePriorities = Callable[[np.ndarray, np.ndarray], None]


class Source(NamedTuple):
  """Where batches come from and their new priorities go."""

  sampler: base.TrajectorySampler
  update_priorities: UpdatePriorities


def make_source(
  config: Any, store: base.TrajectoryStore, num_blocks: int
) -> Source:
  """Makes the learner's source of batches.

  Args:
    config: the run's configuration.
    store: made from it.
    num_blocks: blocks of a batch, one for each training device.

  Raises:
    ValueError: where such batches cannot be had, naming the flag.
  """
  count = demonstrations_per_block(config, num_blocks)
  if count:
    mixed = MixedSampler(store, config.batch_size, num_blocks, count)
    return Source(mixed, mixed.update_priorities)
  sampler = store.sampler(table_configs.TABLE, config.batch_size, num_blocks)

  def update(keys: np.ndarray, priorities: np.ndarray) -> None:
    store.update_priorities(table_configs.TABLE, keys, priorities)

  return Source(sampler, update)


def demonstrations_per_block(config: Any, num_blocks: int) -> int:
  """Returns how many columns of each device's block are demonstrations.

  Args:
    config: the run's configuration.
    num_blocks: training devices.

  Raises:
    ValueError: where that is no whole number, or leaves nothing else.
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


class _Part(NamedTuple):
  """A table's share of every block."""

  table: str
  columns: slice
  sampler: base.TrajectorySampler


class MixedSampler(base.TrajectorySampler):
  """Puts unrolls and demonstrations side by side, in every block alike.

  The first columns of a block are unrolls, the last are demonstrations. Any
  thread may call it; one at a time waits for the tables.
  """

  def __init__(
    self,
    store: base.TrajectoryStore,
    batch_size: int,
    num_blocks: int,
    demonstrations_per_block: int,
  ):
    """Makes a sampler of a store that has both tables.

    Args:
      store: to draw from.
      batch_size: B, unrolls and demonstrations together.
      num_blocks: that a batch comes in.
      demonstrations_per_block: columns of each that are demonstrations.
    """
    self._store = store
    self._num_blocks = num_blocks
    width = batch_size // num_blocks
    own = width - demonstrations_per_block
    self._parts = [
      _Part(table, columns, store.sampler(table, size * num_blocks, num_blocks))
      for table, columns, size in (
        (table_configs.TABLE, slice(0, own), own),
        (
          folder.TABLE,
          slice(own, width),
          demonstrations_per_block,
        ),
      )
    ]
    self._layout = blocks.UnrollLayout(store.unroll_spec)
    self._pool = blocks.BlockPool(self._layout, width)
    self._turn = threading.Lock()
    # What was drawn of a batch whose other part has not come.
    self._drawn: list[base.Sample] = []

  def sample(self, timeout: float | None = None) -> base.Sample:
    """See `TrajectorySampler`; what a time-out interrupts is not lost."""
    deadline = None if timeout is None else time.monotonic() + timeout
    with self._my_turn(timeout):
      try:
        for part in self._parts[len(self._drawn) :]:
          self._drawn.append(part.sampler.sample(_left(deadline)))
      except base.StoreClosed:
        for drawn in self._drawn:
          drawn.release()
        self._drawn = []
        raise
      complete, self._drawn = self._drawn, []
    mixed = [self._pool.take() for _ in range(self._num_blocks)]
    for part, drawn in zip(self._parts, complete, strict=True):
      self._copy(drawn.blocks, mixed, part.columns)
      drawn.release()
    return base.Sample(
      blocks=mixed,
      keys=self._join([s.keys for s in complete]),
      probabilities=self._join([s.probabilities for s in complete]),
      table_size=self._join([s.table_size for s in complete]),
      priorities=self._join([s.priorities for s in complete]),
      on_release=self._release,
    )

  def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
    """Sets the priorities of a batch, each in its own table.

    By place in the batch and not by key: two tables may use a key each.

    Args:
      keys: uint64 `[B]`, of `sample`.
      priorities: float `[B]`.

    Raises:
      ValueError: as `TrajectoryStore.update_priorities`.
    """
    by_block = [x.reshape(self._num_blocks, -1) for x in (keys, priorities)]
    for table, columns, _ in self._parts:
      mine = [x[:, columns].reshape(-1) for x in by_block]
      self._store.update_priorities(table, *mine)

  @contextlib.contextmanager
  def _my_turn(self, timeout: float | None) -> Iterator[None]:
    if not self._turn.acquire(timeout=-1 if timeout is None else timeout):
      raise base.RateLimited(f'No turn to sample within {timeout:g} s.')
    try:
      yield
    finally:
      self._turn.release()

  def _copy(
    self,
    sources: Sequence[base.Block],
    targets: Sequence[base.Block],
    columns: slice,
  ) -> None:
    for source, target in zip(sources, targets, strict=True):
      for i, leaf in enumerate(source.leaves):
        out = target.leaves[i]
        if self._layout.time_major[i]:
          out[:, columns] = leaf
        else:
          out[columns] = leaf

  def _join(self, parts: Sequence[np.ndarray]) -> np.ndarray:
    """Returns `[B]` in the order of the blocks' columns."""
    by_block = [x.reshape(self._num_blocks, -1) for x in parts]
    return np.concatenate(by_block, axis=1).reshape(-1)

  def _release(self, released: Sequence[base.Block]) -> None:
    for block in released:
      self._pool.give_back(block)


def _left(deadline: float | None) -> float | None:
  return None if deadline is None else max(0.0, deadline - time.monotonic())
