"""The store in this process's own memory: no server, no copies for a queue.

Made by `factory.make_store`.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from seedrl_jax import types
from seedrl_jax.replay import archive, base, blocks
from seedrl_jax.replay.embedded import item_table, queue_table, table

_VERSION = 2


class EmbeddedStore(base.TrajectoryStore):
  """Tables of unrolls as plain arrays behind locks."""

  def __init__(
    self,
    configs: Sequence[base.TableConfig],
    unroll_spec: types.Unroll,
    block_width: int,
    seed: int | None = None,
    overlap: int = 1,
  ):
    """Makes empty tables and reserves their memory.

    Args:
      configs: of the tables.
      unroll_spec: `types.Unroll` of `types.ArraySpec` for one unroll: leaves
        under `steps` are `[T + 1, ...]`, the others `[...]`.
      block_width: W, unrolls in a block that writers fill, where a table has
        no width of its own.
      seed: of random draws; None: another one each time.
      overlap: steps that consecutive unrolls of an environment share.

    Raises:
      MemoryError, ValueError: where a table cannot be as configured.
    """
    if block_width < 1:
      raise ValueError(f'A block of {block_width} unrolls holds nothing.')
    self.unroll_spec = unroll_spec
    self.overlap = overlap
    self._layout = blocks.UnrollLayout(unroll_spec, overlap)
    self._pools = blocks.WriterPools(self._layout, configs, block_width)
    self._tables: dict[str, table.Table] = {}
    for config in configs:
      if config.name in self._tables:
        raise ValueError(f'Two tables are called {config.name}.')
      self._tables[config.name] = self._make_table(config, seed)

  def _make_table(
    self, config: base.TableConfig, seed: int | None
  ) -> table.Table:
    pool = self._pools[config.name]
    if config.sampler == 'fifo':
      return queue_table.QueueTable(config, self._layout, pool)
    return item_table.ItemTable(config, self._layout, pool, seed)

  def writer(self, table: str) -> base.TrajectoryWriter:
    """See `TrajectoryStore`."""
    return self._table(table).writer()

  def sampler(
    self, table: str, batch_size: int, num_blocks: int | None = None
  ) -> base.TrajectorySampler:
    """See `TrajectoryStore`."""
    found = self._table(table)
    count = found.prepare_sampler(batch_size, num_blocks)
    return _Sampler(found, batch_size, count)

  def update_priorities(
    self, table: str, keys: np.ndarray, priorities: np.ndarray
  ) -> None:
    """See `TrajectoryStore`."""
    checked = base.check_priorities(priorities, len(keys))
    self._table(table).update_priorities(np.asarray(keys, np.uint64), checked)

  def flush(self, timeout: float | None = base.FLUSH_SECONDS) -> None:
    """See `TrajectoryStore`: nothing is ever on its way."""
    del timeout

  def info(self) -> Mapping[str, base.TableInfo]:
    """See `TrajectoryStore`."""
    return {name: table.info() for name, table in self._tables.items()}

  def reset(self, table: str) -> None:
    """See `TrajectoryStore`."""
    self._table(table).reset()

  def checkpoint(
    self, path: str, on_snapshot: Callable[[], None] | None = None
  ) -> None:
    """See `TrajectoryStore`; sampling goes on meanwhile.

    What is saved keeps its place in memory until it is written. So inserts
    into a table that is full, for which the oldest must give way, wait till
    then: as long as the disk takes for the whole replay.
    """
    with archive.create(path) as writer, contextlib.ExitStack() as held:
      saves = [held.enter_context(t.snapshot()) for t in self._tables.values()]
      if on_snapshot is not None:
        on_snapshot()
      writer.add_meta('version', _VERSION)
      writer.add_meta('unroll', self._layout.signature())
      writer.add_meta('tables', sorted(self._tables))
      for save in saves:
        save(writer)

  def restore(self, path: str) -> None:
    """See `TrajectoryStore`."""
    with archive.load(path) as reader:
      self._check_fits(path, reader)
      for found in self._tables.values():
        with _emptied_on_error(found):
          found.load(reader)

  def interrupt(self) -> None:
    """See `TrajectoryStore`."""
    self._pools.close()
    for closed in self._tables.values():
      closed.close()

  def close(self) -> None:
    """See `TrajectoryStore`; memory goes with the last who holds it."""
    self.interrupt()

  def _table(self, name: str) -> table.Table:
    try:
      return self._tables[name]
    except KeyError:
      known = ', '.join(self._tables)
      raise ValueError(f'There is no table {name}, only {known}.') from None

  def _check_fits(self, path: str, reader: archive.ArchiveReader) -> None:
    start = f'The replay checkpoint {path} does not fit this run'
    if reader.meta['version'] != _VERSION:
      version = reader.meta['version']
      raise base.CheckpointError(f'{start}: it is of version {version}.')
    if reader.meta['tables'] != sorted(self._tables):
      raise base.CheckpointError(
        f'{start}: it has the tables {reader.meta["tables"]}, not '
        f'{sorted(self._tables)}.'
      )
    self._layout.check_signature(start, reader.meta['unroll'])


@contextlib.contextmanager
def _emptied_on_error(loaded: table.Table) -> Iterator[None]:
  try:
    yield
  except BaseException:
    loaded.reset()
    raise


class _Sampler(base.TrajectorySampler):
  def __init__(self, source: table.Table, batch_size: int, num_blocks: int):
    self._source = source
    self._batch_size = batch_size
    self._num_blocks = num_blocks

  def sample(self, timeout: float | None = None) -> base.Sample:
    return self._source.sample(self._batch_size, self._num_blocks, timeout)
