"""What the embedded store's two kinds of table have in common.

Subclassed by `queue_table.py` and `item_table.py`, called by `embedded.py`.
"""

import abc
import contextlib
import threading
from collections.abc import Callable

import numpy as np

from seedrl_jax.replay import archive, base, blocks, fair_queue

# Writes a table's contents.
Save = Callable[[archive.ArchiveWriter], None]


class Table(abc.ABC):
  """One table: a lock, the two lines that wait for it, and its counts.

  Attributes:
    config: its rules.
  """

  def __init__(
    self,
    config: base.TableConfig,
    layout: blocks.UnrollLayout,
    pool: blocks.BlockPool,
  ):
    """Makes an empty table.

    Args:
      config: its rules.
      layout: of the unrolls.
      pool: of the blocks that are inserted.

    Raises:
      ValueError: where it cannot hold one block.
    """
    if config.max_size < pool.width:
      raise ValueError(
        f'--config.replay.max_size={config.max_size}: a block of '
        f'{pool.width} unrolls must fit in; raise it.'
      )
    self.config = config
    self._layout = layout
    self._pool = pool
    self._lock = threading.Lock()
    name = f'table {config.name}'
    self._writers = fair_queue.Line(self._lock, f'insert into {name}')
    self._samplers = fair_queue.Line(self._lock, f'sample from {name}')

  def writer(self) -> base.TrajectoryWriter:
    """Returns a writer to it."""
    return blocks.PoolWriter(self._pool, self.insert)

  @abc.abstractmethod
  def prepare_sampler(self, batch_size: int, num_blocks: int | None) -> int:
    """Makes room for such batches; returns the number of their blocks.

    Raises:
      ValueError: as `TrajectoryStore.sampler`.
    """

  @abc.abstractmethod
  def insert(
    self, block: base.Block, priorities: np.ndarray, timeout: float | None
  ) -> None:
    """Inserts a lent block; see `TrajectoryWriter.insert`."""

  @abc.abstractmethod
  def sample(
    self, batch_size: int, num_blocks: int, timeout: float | None
  ) -> base.Sample:
    """Draws a batch; see `TrajectorySampler.sample`."""

  @abc.abstractmethod
  def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
    """Sets checked priorities; see `TrajectoryStore.update_priorities`."""

  @abc.abstractmethod
  def reset(self) -> None:
    """Removes everything and sets the counts to zero."""

  @abc.abstractmethod
  def snapshot(self) -> contextlib.AbstractContextManager[Save]:
    """Holds on to all unrolls and counts of this moment, for the body.

    Gives what writes them, under names that start with the table's.
    """

  @abc.abstractmethod
  def load(self, reader: archive.ArchiveReader) -> None:
    """Replaces everything by what was saved; empty where that fails.

    Raises:
      CheckpointError, ValueError, KeyError, ...: as `archive.load` turns into
        one sentence.
    """

  @abc.abstractmethod
  def _counts(self) -> tuple[int, int, int]:
    """Returns size, inserts and samples; called with the lock held."""

  def info(self) -> base.TableInfo:
    """Returns its state."""
    with self._lock:
      size, inserts, samples = self._counts()
      return base.TableInfo(
        config=self.config,
        size=size,
        inserts=inserts,
        samples=samples,
        writer_wait_seconds=self._writers.seconds,
        sampler_wait_seconds=self._samplers.seconds,
        waiting_writers=len(self._writers),
        waiting_samplers=len(self._samplers),
      )

  def close(self) -> None:
    """Wakes every waiter with `StoreClosed`."""
    with self._lock:
      self._writers.close()
      self._samplers.close()

  def _wake(self) -> None:
    """To be called after every change, with the lock held."""
    self._writers.wake()
    self._samplers.wake()

  def _member(self, name: str | int) -> str:
    """Returns an archive member's name; leaves of the unroll go by number."""
    return f'{self.config.name}/{name}'
