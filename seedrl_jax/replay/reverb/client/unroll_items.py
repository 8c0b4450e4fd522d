"""Encodes blocks of unrolls as chunks and items, and decodes samples.

*   A queue's item is a block. Each leaf under `steps` is a column of T + 1
    rows `[W, ...]`, cut into chunks of about a megabyte for several threads;
    every other leaf is a column of one row `[W, ...]`.
*   A replay's item is one unroll: a column of T + 1 rows, each the bytes of a
    step, and one of a single row, the bytes of all else. (With a column for
    each leaf, single transitions would take five times as long.) Consecutive
    unrolls of an environment share the chunks of overlapping steps.

A queue's one-row columns are squeezed, as the official client writes a scalar
step.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from seedrl_jax.replay import base, blocks
from seedrl_jax.replay.reverb.client import items

# Bytes that a thread compresses or decompresses at once.
_CHUNK_BYTES = 1 << 20
# The largest chunk of one unroll: far below a message's limit, and far above
# most unrolls, which stay whole.
_UNROLL_CHUNK_BYTES = 1 << 25
# The smallest overlap of unrolls that is worth chunks of its own.
_OVERLAP_BYTES = 1 << 12
# Bytes of an unroll from which on threads are worth their hand-over.
_THREADED_BYTES = 1 << 14

# Is `map`, or does the same in parallel.
Mapper = Callable[..., Iterable[Any]]
# Sets priorities, float `[n]`, of keys, uint64 `[n]`.
UpdatePriorities = Callable[[np.ndarray, np.ndarray], None]


class BlockCodec:
  """The items of a queue, each a whole block."""

  def __init__(self, layout: blocks.UnrollLayout, table: str, mapper: Mapper):
    self._layout = layout
    self._table = table
    self._map = mapper

  def encode(self, block: base.Block, priorities: np.ndarray) -> items.Encoded:
    """Encodes a block, which may be written to again afterwards."""
    del priorities
    steps, others = self._layout.split(block.leaves)
    rows = [leaf[np.newaxis] for leaf in others]
    parts = [*_cut(steps, _CHUNK_BYTES), rows]
    *chunks, last = self._map(items.encode_chunk, parts)
    columns = []
    for i in range(len(steps)):
      slices = [items.Slice(chunk, i, 0, chunk.rows) for chunk in chunks]
      columns.append(items.ItemColumn(slices))
    for i in range(len(rows)):
      slices = [items.Slice(last, i, 0, 1)]
      columns.append(items.ItemColumn(slices, squeeze=True))
    return items.Encoded([items.make_item(self._table, 1.0, columns)])

  def decode(
    self,
    pool: blocks.BlockPool,
    update_priorities: UpdatePriorities,
    drawn: Sequence[items.DrawnItem],
  ) -> base.Sample:
    """Decodes a batch; raises ValueError if its items do not fit."""
    del update_priorities
    taken = [pool.take() for _ in drawn]
    for item, block in zip(drawn, taken, strict=True):
      tasks = item.decode(block.leaves)
      list(self._map(items.decode_into, *zip(*tasks, strict=True)))
    return base.Sample(taken, pool.give_back)


class UnrollCodec:
  """The items of a replay, each one unroll; they share overlapping steps."""

  def __init__(self, layout: blocks.UnrollLayout, table: str, mapper: Mapper):
    self._layout = layout
    self._table = table
    self._map = map if layout.unroll_bytes < _THREADED_BYTES else mapper
    steps, others = layout.split(layout.specs)
    # Structured types of rows; a field's name is its leaf's place.
    self._step = np.dtype([
      (str(i), x.dtype, x.shape[1:]) for i, x in enumerate(steps)
    ])
    self._rest = np.dtype([
      (str(i), x.dtype, x.shape) for i, x in enumerate(others)
    ])
    overlap = layout.overlap
    shares = overlap > 1 and overlap * self._step.itemsize >= _OVERLAP_BYTES
    # First and last steps are apart, so that a whole chunk holds either.
    fits = 2 * overlap <= layout.num_steps
    self._overlap = overlap if shares and fits else 0
    # By environment: contents and chunks of the last unroll's last steps.
    self._tails: dict[int, tuple[bytes, list[items.Slice]]] = {}

  def encode(self, block: base.Block, priorities: np.ndarray) -> items.Encoded:
    """Encodes a block, which may be written to again afterwards."""
    env_ids = block.unroll.env_id.tolist()
    steps, rest = self._pack(block)
    encoded = list(
      self._map(self._encode_unroll, env_ids, steps, rest, priorities.tolist())
    )
    if self._overlap:
      for env_id, (_, tail) in zip(env_ids, encoded, strict=True):
        self._tails[env_id] = tail
    keep = {s.chunk.key for _, tail in self._tails.values() for s in tail}
    return items.Encoded([item for item, _ in encoded], keep)

  def _pack(self, block: base.Block) -> tuple[np.ndarray, np.ndarray]:
    """Returns bytes `[W, T + 1, step]` and `[W, 1, rest]` of a block."""
    steps = np.empty((block.width, self._layout.num_steps), self._step)
    rest = np.empty((block.width, 1), self._rest)
    time_major, others = self._layout.split(block.leaves)
    for i, leaf in enumerate(time_major):
      steps[str(i)] = leaf.swapaxes(0, 1)
    for i, leaf in enumerate(others):
      rest[str(i)][:, 0] = leaf
    return _bytes(steps), _bytes(rest)

  def _encode_unroll(
    self, env_id: int, steps: np.ndarray, rest: np.ndarray, priority: float
  ) -> tuple[items.Item, tuple[bytes, list[items.Slice]]]:
    overlap, stop = self._overlap, len(steps) - self._overlap
    # What already holds the unroll's first steps, if any. Compares contents, as
    # an environment that went away meanwhile starts anew.
    contents, first = self._tails.get(env_id, (None, []))
    if contents != steps[:overlap].tobytes():
      first = _encode_rows(steps[:overlap])
    last = _encode_rows(steps[stop:])
    slices = [*first, *_encode_rows(steps[overlap:stop]), *last]
    columns = [items.ItemColumn(slices), items.ItemColumn(_encode_rows(rest))]
    item = items.make_item(self._table, priority, columns)
    return item, (steps[stop:].tobytes(), last)

  def decode(
    self,
    pool: blocks.BlockPool,
    update_priorities: UpdatePriorities,
    drawn: Sequence[items.DrawnItem],
  ) -> base.Sample:
    """Decodes a batch; raises ValueError if its items do not fit."""
    taken = [pool.take() for _ in range(len(drawn) // pool.width)]
    parts = [self._layout.split(block.leaves) for block in taken]
    places = [(leaves, i) for leaves in parts for i in range(pool.width)]
    list(self._map(self._unpack, drawn, *zip(*places, strict=True)))
    infos = [item.info for item in drawn]
    keys = np.array([info.item.key for info in infos], np.uint64)
    return base.ReplaySample(
      blocks=taken,
      on_release=pool.give_back,
      keys=keys,
      probabilities=np.array([info.probability for info in infos], np.float32),
      table_size=np.array([info.table_size for info in infos], np.float32),
      priorities=np.array([info.item.priority for info in infos]),
      on_update=functools.partial(update_priorities, keys),
    )

  def _unpack(
    self, item: items.DrawnItem, leaves: tuple[list, list], index: int
  ) -> None:
    """Writes an item to column `index` of a block's leaves, as split."""
    steps = np.empty(self._layout.num_steps, self._step)
    rest = np.empty(1, self._rest)
    for task in item.decode([_bytes(steps), _bytes(rest)]):
      items.decode_into(*task)
    time_major, others = leaves
    for i, leaf in enumerate(time_major):
      leaf[:, index] = steps[str(i)]
    for i, leaf in enumerate(others):
      leaf[index] = rest[str(i)][0]


def _bytes(rows: np.ndarray) -> np.ndarray:
  """Returns a view of rows `[...]` of a structured type, `[..., bytes]`."""
  return rows.view(np.uint8).reshape(*rows.shape, rows.dtype.itemsize)


def _encode_rows(rows: np.ndarray) -> list[items.Slice]:
  """Encodes rows as chunks that a message can carry."""
  chunks = map(items.encode_chunk, _cut([rows], _UNROLL_CHUNK_BYTES))
  return [items.Slice(chunk, 0, 0, chunk.rows) for chunk in chunks]


def _cut(columns: Sequence[np.ndarray], size: int) -> list[list[np.ndarray]]:
  """Cuts columns of equal rows into pieces of about `size` bytes."""
  rows = len(columns[0])
  at_once = max(1, size * rows // max(1, sum(c.nbytes for c in columns)))
  return [
    [column[start : start + at_once] for column in columns]
    for start in range(0, rows, at_once)
  ]
