"""The embedded store's FIFO queue: whole blocks, handed on without a copy.

Called by `embedded.py`. Insert and sample move references; the unrolls stay
where the writer assembled them until the learner releases the batch.
"""

import collections
import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from seedrl_jax.replay import archive, base, blocks
from seedrl_jax.replay.embedded import table


class _Entry(NamedTuple):
  block: base.Block
  keys: np.ndarray
  priorities: np.ndarray


class QueueTable(table.Table):
  """Blocks in order of arrival, each sampled once. Full: writers wait."""

  def __init__(
    self,
    config: base.TableConfig,
    layout: blocks.UnrollLayout,
    pool: blocks.BlockPool,
  ):
    """Makes an empty queue.

    Args:
      config: its rules.
      layout: of the unrolls.
      pool: of the blocks that are inserted.
    """
    super().__init__(config, layout, pool)
    self._width = pool.width
    self._entries: collections.deque[_Entry] = collections.deque()
    self._next_key = 1
    self._inserts = 0
    self._samples = 0

  def prepare_sampler(self, batch_size: int, num_blocks: int | None) -> int:
    """See `Table`."""
    return blocks.blocks_of_batch(
      self.config, batch_size, num_blocks, self._width
    )

  def insert(
    self, block: base.Block, priorities: np.ndarray, timeout: float | None
  ) -> None:
    """See `Table`."""
    with self._lock:
      self._writers.wait(self._has_room, timeout)
      block.lent = False
      self._append(block, priorities)
      self._inserts += block.width
      self._wake()

  def sample(
    self, batch_size: int, num_blocks: int, timeout: float | None
  ) -> base.Sample:
    """See `Table`."""
    with self._lock:
      self._samplers.wait(lambda: len(self._entries) >= num_blocks, timeout)
      size = self._size
      entries = [self._entries.popleft() for _ in range(num_blocks)]
      self._samples += batch_size
      self._wake()
    return base.Sample(
      blocks=[entry.block for entry in entries],
      keys=np.concatenate([entry.keys for entry in entries]),
      probabilities=np.ones(batch_size, np.float32),
      table_size=np.full(batch_size, size, np.float32),
      priorities=np.concatenate([entry.priorities for entry in entries]),
      on_release=self._release,
    )

  def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
    """Does nothing: who knows a key has sampled it, so it has left."""

  def reset(self) -> None:
    """See `Table`."""
    with self._lock:
      self._clear()
      self._wake()

  @contextlib.contextmanager
  def snapshot(self) -> Iterator[table.Save]:
    """See `Table`; copies the unrolls, which are few."""
    with self._lock:
      counts = {
        'inserts': self._inserts,
        'samples': self._samples,
        'next_key': self._next_key,
      }
      size = self._size
      priorities = [entry.priorities for entry in self._entries]
      leaves = [
        [piece.copy() for piece in self._leaf_pieces(leaf)]
        for leaf in range(len(self._layout.specs))
      ]

    def save(writer: archive.ArchiveWriter) -> None:
      writer.add_meta(self.config.name, counts)
      writer.add_array(
        self._member('priorities'), np.concatenate([*priorities, np.empty(0)])
      )
      for leaf, spec in enumerate(self._layout.specs):
        member = self._member(leaf)
        writer.add_rows(member, size, spec.shape, spec.dtype, leaves[leaf])

    yield save

  def load(self, reader: archive.ArchiveReader) -> None:
    """See `Table`; unrolls that make no whole block are dropped, oldest first.

    The block width may differ from the one that was saved.
    """
    with self._lock:
      self._clear()
      loaded = self._load_blocks(reader)
      meta = reader.meta[self.config.name]
      counts = meta['inserts'], meta['samples'], meta['next_key']
      self._inserts, self._samples, self._next_key = map(int, counts)
      for block, priorities in loaded:
        self._append(block, priorities)
      self._wake()

  def _load_blocks(
    self, reader: archive.ArchiveReader
  ) -> list[tuple[base.Block, np.ndarray]]:
    priorities = reader.array(self._member('priorities'))
    keep = min(len(priorities), self.config.max_size) // self._width
    skip = len(priorities) - keep * self._width
    loaded = [self._pool.take() for _ in range(keep)]
    for leaf, time_major in enumerate(self._layout.time_major):
      row = -skip
      for piece in reader.rows(self._member(leaf)):
        for unroll in piece:
          if row >= 0:
            block, column = divmod(row, self._width)
            place = (slice(None), column) if time_major else column
            loaded[block].leaves[leaf][place] = unroll
          row += 1
    return list(
      zip(loaded, priorities[skip:].reshape(keep, self._width), strict=True)
    )

  @property
  def _size(self) -> int:
    return len(self._entries) * self._width

  def _has_room(self) -> bool:
    return self._size + self._width <= self.config.max_size

  def _append(self, block: base.Block, priorities: np.ndarray) -> None:
    end = self._next_key + block.width
    keys = np.arange(self._next_key, end, dtype=np.uint64)
    self._next_key = end
    self._entries.append(_Entry(block, keys, priorities))

  def _clear(self) -> None:
    self._release([entry.block for entry in self._entries])
    self._entries.clear()
    self._inserts = self._samples = 0

  def _release(self, released: collections.abc.Sequence[base.Block]) -> None:
    for block in released:
      self._pool.give_back(block)

  def _leaf_pieces(self, leaf: int) -> Iterator[np.ndarray]:
    for entry in self._entries:
      array = entry.block.leaves[leaf]
      yield array.swapaxes(0, 1) if self._layout.time_major[leaf] else array

  def _counts(self) -> tuple[int, int, int]:
    return self._size, self._inserts, self._samples
