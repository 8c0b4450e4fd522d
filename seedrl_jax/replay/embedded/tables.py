"""The embedded store's tables: their common part, and the queue.

A queue passes on whole blocks without a copy.
"""

import abc
import collections
import contextlib
import dataclasses
import threading
from collections.abc import Callable

import numpy as np

from seedrl_jax.replay import (
  base,
  blocks,
  checkpoints,
  fair_queue,
  table_configs,
)

# Writes a table's contents.
Save = Callable[[checkpoints.ArchiveWriter], None]


class EmbeddedTable(base.Table):
  """A table in this process's memory."""

  def __init__(
    self,
    config: table_configs.TableConfig,
    pool: blocks.BlockPool,
    samplers: fair_queue.FairQueue | None = None,
  ):
    """Raises ValueError if the table cannot hold one block.

    `samplers` are those of another table, if they draw from this one, too.
    """
    if config.max_size < pool.width:
      raise ValueError(
        f'--config.replay.max_size={config.max_size}: a block of '
        f'{pool.width} unrolls must fit in; raise it.'
      )
    self.config = config
    self.block_width = pool.width
    self._layout = pool.layout
    self._pool = pool
    name = f'table {config.name}'
    if samplers is None:
      samplers = fair_queue.FairQueue(threading.Lock(), f'sample from {name}')
    self._samplers = samplers
    # Held for every change.
    self._lock = samplers.lock
    self._writers = fair_queue.FairQueue(self._lock, f'insert into {name}')

  def allocate(self) -> base.Block:
    return self._pool.take()

  def info(self) -> base.TableInfo:
    with self._lock:
      size, inserts, samples = self._counts()
    writer_seconds, writers = self._writers.waits()
    sampler_seconds, samplers = self._samplers.waits()
    return base.TableInfo(
      config=self.config,
      size=size,
      inserts=inserts,
      samples=samples,
      writer_wait_seconds=writer_seconds,
      sampler_wait_seconds=sampler_seconds,
      waiting_writers=writers,
      waiting_samplers=samplers,
    )

  def interrupt(self) -> None:
    self._writers.close()
    self._samplers.close()

  def _make_sampler(
    self, batch_size: int, num_blocks: int
  ) -> 'EmbeddedSampler':
    return EmbeddedSampler(self, batch_size, num_blocks)

  @abc.abstractmethod
  def draw(self, batch_size: int, num_blocks: int, wait: bool) -> base.Sample:
    """Draws a batch; see `TrajectorySampler.sample`."""

  @abc.abstractmethod
  def snapshot(self, held: contextlib.ExitStack) -> Save:
    """Returns what writes the current contents, until `held` closes."""

  @abc.abstractmethod
  def load(self, reader: checkpoints.ArchiveReader) -> None:
    """Replaces everything by what was saved; empty if that fails."""

  @abc.abstractmethod
  def _counts(self) -> tuple[int, int, int]:
    """Returns size, inserts and samples; called with the lock held."""

  def _wake(self) -> None:
    """Wakes threads that can go on; called with the lock held."""
    self._writers.wake()
    self._samplers.wake()

  def _member(self, name: str | int) -> str:
    return f'{self.config.name}/{name}'


@dataclasses.dataclass(frozen=True)
class EmbeddedSampler(base.TrajectorySampler):
  """Draws batches of one size from a table."""

  table: EmbeddedTable
  batch_size: int
  num_blocks: int

  def sample(self, wait: bool = True) -> base.Sample:
    return self.table.draw(self.batch_size, self.num_blocks, wait)


class EmbeddedQueue(EmbeddedTable):
  """Draws blocks in order, each once; writers wait while it is full."""

  def __init__(
    self,
    config: table_configs.TableConfig,
    pool: blocks.BlockPool,
    samplers: fair_queue.FairQueue | None = None,
  ):
    super().__init__(config, pool, samplers)
    self._blocks: collections.deque[base.Block] = collections.deque()
    self._inserts = self._samples = 0

  def insert(
    self, block: base.Block, priorities: np.ndarray | None = None
  ) -> None:
    del priorities
    with self._lock:
      capacity = self.config.max_size - block.width
      self._writers.enter(lambda: len(self._blocks) * block.width <= capacity)
      self._blocks.append(block)
      self._inserts += block.width
      self._wake()

  def draw(self, batch_size: int, num_blocks: int, wait: bool) -> base.Sample:
    with self._lock:
      self._samplers.enter(lambda: len(self._blocks) >= num_blocks, wait)
      return self._take(batch_size, num_blocks)

  def _take(self, batch_size: int, num_blocks: int) -> base.Sample:
    """Takes the oldest blocks; called with the lock held."""
    drawn = [self._blocks.popleft() for _ in range(num_blocks)]
    self._samples += batch_size
    self._wake()
    return base.Sample(drawn, self._pool.give_back)

  def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
    """Does nothing."""

  def snapshot(self, held: contextlib.ExitStack) -> Save:
    """See `EmbeddedTable`; copies the unrolls, which are few."""
    del held
    specs = self._layout.specs
    empty = [np.empty((0, *spec.shape), spec.dtype) for spec in specs]
    with self._lock:
      counts = {'inserts': self._inserts, 'samples': self._samples}
      parts = [empty, *map(self._layout.rows, self._blocks)]
      leaves = list(map(np.concatenate, zip(*parts, strict=True)))

    def save(writer: checkpoints.ArchiveWriter) -> None:
      writer.meta[self.config.name] = counts
      for leaf, rows in enumerate(leaves):
        writer.add_array(self._member(leaf), rows)

    return save

  def load(self, reader: checkpoints.ArchiveReader) -> None:
    """Loads any block width; drops the oldest unrolls if they fill no block."""
    with self._lock:
      self._pool.give_back(self._blocks)
      self._blocks.clear()
      self._inserts = self._samples = 0
      meta = reader.meta[self.config.name]
      leaves = [
        reader.array(self._member(leaf), spec)
        for leaf, spec in enumerate(self._layout.specs)
      ]
      size, width = len(leaves[0]), self._pool.width
      count = min(size, self.config.max_size) // width
      loaded = [self._pool.take() for _ in range(count)]
      for i, block in enumerate(reversed(loaded)):
        stop = size - i * width
        for rows, leaf in zip(self._layout.rows(block), leaves, strict=True):
          rows[...] = leaf[stop - width : stop]
      self._blocks.extend(loaded)
      self._inserts, self._samples = meta['inserts'], meta['samples']
      self._wake()

  def _counts(self) -> tuple[int, int, int]:
    return len(self._blocks) * self._pool.width, self._inserts, self._samples
