"""The embedded store's queue: whole blocks, passed on without a copy."""

import collections
import contextlib
from collections.abc import Iterator

import numpy as np

from seedrl_jax.replay import archive, base, blocks, table_configs
from seedrl_jax.replay.embedded import table


class EmbeddedQueue(table.EmbeddedTable, base.Queue):
  """Draws blocks in order, each once; writers wait while it is full."""

  def __init__(
    self,
    config: table_configs.TableConfig,
    layout: blocks.UnrollLayout,
    pool: blocks.BlockPool,
  ):
    super().__init__(config, layout, pool)
    self._width = pool.width
    self._blocks: collections.deque[base.Block] = collections.deque()
    self._inserts = 0
    self._samples = 0

  def insert(
    self, block: base.Block, priorities: np.ndarray | None = None
  ) -> None:
    del priorities
    self._pool.check_lent(block)
    with self._gate.lock:
      self._gate.writers.enter(self._has_room)
      block.lent = False
      self._blocks.append(block)
      self._inserts += block.width
      self._gate.wake()

  def sampler(
    self, batch_size: int, num_blocks: int | None = None
  ) -> base.TrajectorySampler:
    count = self.config.num_blocks(batch_size, num_blocks, self._width)
    return table.EmbeddedSampler(self, batch_size, count)

  def draw(self, batch_size: int, num_blocks: int, wait: bool) -> base.Sample:
    with self._gate.lock:
      self._gate.samplers.enter(lambda: len(self._blocks) >= num_blocks, wait)
      drawn = [self._blocks.popleft() for _ in range(num_blocks)]
      self._samples += batch_size
      self._gate.wake()
    return base.Sample(drawn, self._pool.give_back)

  @contextlib.contextmanager
  def snapshot(self) -> Iterator[table.Save]:
    """See `EmbeddedTable`; copies the unrolls, which are few."""
    with self._gate.lock:
      size, inserts, samples = self._counts()
      leaves = [
        [piece.copy() for piece in self._leaf_pieces(leaf)]
        for leaf in range(len(self._layout.specs))
      ]

    def save(writer: archive.ArchiveWriter) -> None:
      counts = {'size': size, 'inserts': inserts, 'samples': samples}
      writer.add_meta(self.config.name, counts)
      for leaf, spec in enumerate(self._layout.specs):
        member = self._member(leaf)
        writer.add_rows(member, size, spec.shape, spec.dtype, leaves[leaf])

    yield save

  def load(self, reader: archive.ArchiveReader) -> None:
    """Loads any block width; drops the oldest unrolls if they fill no block."""
    with self._gate.lock:
      self._clear()
      meta = reader.meta[self.config.name]
      loaded = self._load_blocks(reader, int(meta['size']))
      self._inserts, self._samples = int(meta['inserts']), int(meta['samples'])
      self._blocks.extend(loaded)
      self._gate.wake()

  def _load_blocks(
    self, reader: archive.ArchiveReader, size: int
  ) -> list[base.Block]:
    keep = min(size, self.config.max_size) // self._width
    loaded = [self._pool.take() for _ in range(keep)]
    for leaf, time_major in enumerate(self._layout.time_major):
      row = keep * self._width - size
      for piece in reader.rows(self._member(leaf)):
        for unroll in piece:
          if row >= 0:
            block, column = divmod(row, self._width)
            place = (slice(None), column) if time_major else column
            loaded[block].leaves[leaf][place] = unroll
          row += 1
    return loaded

  def _has_room(self) -> bool:
    return (len(self._blocks) + 1) * self._width <= self.config.max_size

  def _clear(self) -> None:
    self._pool.give_back(self._blocks)
    self._blocks.clear()
    self._inserts = self._samples = 0

  def _leaf_pieces(self, leaf: int) -> Iterator[np.ndarray]:
    for block in self._blocks:
      array = block.leaves[leaf]
      yield array.swapaxes(0, 1) if self._layout.time_major[leaf] else array

  def _counts(self) -> tuple[int, int, int]:
    return len(self._blocks) * self._width, self._inserts, self._samples
