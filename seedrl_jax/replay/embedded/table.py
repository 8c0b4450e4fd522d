"""The common part of the embedded store's two kinds of table."""

import abc
import contextlib
from collections.abc import Callable

from seedrl_jax.replay import archive, base, blocks, fair_queue, table_configs

# Writes a table's contents.
Save = Callable[[archive.ArchiveWriter], None]


class EmbeddedTable(base.Table):
  """A table in this process's memory."""

  def __init__(
    self,
    config: table_configs.TableConfig,
    layout: blocks.UnrollLayout,
    pool: blocks.BlockPool,
  ):
    """Raises ValueError if the table cannot hold one block."""
    if config.max_size < pool.width:
      raise ValueError(
        f'--config.replay.max_size={config.max_size}: a block of '
        f'{pool.width} unrolls must fit in; raise it.'
      )
    self.config = config
    self._layout = layout
    self._pool = pool
    self._gate = fair_queue.TableGate(config.name)

  def allocate(self) -> base.Block:
    return self._pool.lend()

  def info(self) -> base.TableInfo:
    with self._gate.lock:
      return self._gate.info(self.config, *self._counts())

  def interrupt(self) -> None:
    """Wakes every waiter with `StoreClosed` and lends no more blocks."""
    self._pool.close()
    self._gate.close()

  @abc.abstractmethod
  def draw(self, batch_size: int, num_blocks: int, wait: bool) -> base.Sample:
    """Draws a batch; see `TrajectorySampler.sample`."""

  @abc.abstractmethod
  def snapshot(self) -> contextlib.AbstractContextManager[Save]:
    """Keeps the current contents during the body; yields what writes them."""

  @abc.abstractmethod
  def load(self, reader: archive.ArchiveReader) -> None:
    """Replaces everything by what was saved; empty if that fails."""

  @abc.abstractmethod
  def _counts(self) -> tuple[int, int, int]:
    """Returns size, inserts and samples; called with the lock held."""

  def _member(self, name: str | int) -> str:
    return f'{self.config.name}/{name}'


class EmbeddedSampler(base.TrajectorySampler):
  """Draws batches of one size from a table."""

  def __init__(self, table: EmbeddedTable, batch_size: int, num_blocks: int):
    self._table = table
    self._batch_size = batch_size
    self._num_blocks = num_blocks

  def sample(self, wait: bool = True) -> base.Sample:
    return self._table.draw(self._batch_size, self._num_blocks, wait)
