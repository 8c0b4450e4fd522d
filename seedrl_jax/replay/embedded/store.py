"""The store in this process's own memory."""

import contextlib
from collections.abc import Callable, Mapping, Sequence

from seedrl_jax import types
from seedrl_jax.replay import base, blocks, checkpoints, table_configs
from seedrl_jax.replay.embedded import replay_table, tables

_VERSION = 3


class EmbeddedStore(base.TrajectoryStore):
  """Tables of unrolls as plain arrays behind locks."""

  def __init__(
    self,
    configs: Sequence[table_configs.TableConfig],
    unroll_spec: types.Unroll,
    block_width: int,
    seed: int | None = None,
    overlap: int = 1,
  ):
    """Makes empty tables and reserves their memory.

    Args:
      unroll_spec: `types.Unroll` of `types.ArraySpec` for one unroll: leaves
        under `steps` are `[T + 1, ...]`, the others `[...]`.
      block_width: W, unrolls per block of tables without a width of their own.
      seed: of random draws; None: a different one each time.

    Raises MemoryError or ValueError if a table cannot be as configured.
    """
    self.unroll_spec = unroll_spec
    self.overlap = overlap
    self._layout = blocks.UnrollLayout(unroll_spec, overlap)
    self._tables: dict[str, tables.EmbeddedTable] = {}
    for config in configs:
      width = config.block_width or block_width
      pool = blocks.BlockPool(self._layout, width)
      self._tables[config.name] = (
        tables.EmbeddedQueue(config, pool)
        if isinstance(config, table_configs.QueueConfig)
        else replay_table.EmbeddedReplay(config, pool, seed)
      )

  def flush(self) -> None:
    """Does nothing: inserts and updates take effect at once."""

  def info(self) -> Mapping[str, base.TableInfo]:
    return {name: table.info() for name, table in self._tables.items()}

  def checkpoint(
    self, path: str, on_snapshot: Callable[[], None] | None = None
  ) -> None:
    """See `TrajectoryStore`; inserts into full tables wait for the writing."""
    with (
      checkpoints.create_archive(path) as writer,
      contextlib.ExitStack() as held,
    ):
      saves = [t.snapshot(held) for t in self._tables.values()]
      if on_snapshot is not None:
        on_snapshot()
      writer.meta['version'] = _VERSION
      writer.meta['unroll'] = self._layout.signature()
      writer.meta['tables'] = sorted(self._tables)
      for save in saves:
        save(writer)

  def restore(self, path: str) -> None:
    with checkpoints.load_archive(path) as reader:
      checkpoints.check_fits(path, reader.meta, _VERSION, self._layout)
      saved = reader.meta.get('tables')
      if saved != sorted(self._tables):
        raise base.CheckpointError(
          f'The replay checkpoint {path} has the tables {saved}, not '
          f'{sorted(self._tables)}.'
        )
      with checkpoints.refusing_damage(path):
        for table in self._tables.values():
          table.load(reader)

  def close(self) -> None:
    """See `TrajectoryStore`; memory is freed with the last block in use."""
    self.interrupt()
