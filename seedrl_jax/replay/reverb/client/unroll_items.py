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
import itertools
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

# Is `map`, or does the same in parallel.
Mapper = Callable[..., Iterable[Any]]


def encode_block(
  time_major: Sequence[bool],
  table: str,
  block: base.Block,
  mapper: Mapper,
) -> items.Encoded:
  """Encodes a block as one item, for a queue."""
  steps: list[np.ndarray] = []
  rest: list[np.ndarray] = []
  for leaf, major in zip(block.leaves, time_major, strict=True):
    if major:
      steps.append(leaf)
    else:
      rest.append(leaf[np.newaxis])
  parts = [*_cut(steps, _CHUNK_BYTES), rest]
  *chunks, last = mapper(items.encode_chunk, parts)
  columns = []
  step_index, rest_index = itertools.count(), itertools.count()
  for major in time_major:
    if major:
      index = next(step_index)
      slices = [items.Slice(chunk, index, 0, chunk.rows) for chunk in chunks]
      columns.append(items.ItemColumn(slices))
    else:
      slices = [items.Slice(last, next(rest_index), 0, 1)]
      columns.append(items.ItemColumn(slices, squeeze=True))
  return items.Encoded([items.make_item(table, 1.0, columns)])


class Rows:
  """The bytes of unrolls as rows: one for each step, and one for all else.

  Attributes:
    step, rest: structured types of such rows; a field's name is a leaf's index.
  """

  def __init__(self, layout: blocks.UnrollLayout):
    self.num_steps = layout.num_steps
    # Indices of leaves.
    self._steps: list[int] = []
    self._others: list[int] = []
    step, rest = [], []
    leaves = zip(layout.specs, layout.time_major, strict=True)
    for i, (spec, major) in enumerate(leaves):
      if major:
        self._steps.append(i)
        step.append((str(i), spec.dtype, spec.shape[1:]))
      else:
        self._others.append(i)
        rest.append((str(i), spec.dtype, spec.shape))
    self.step, self.rest = np.dtype(step), np.dtype(rest)

  def pack(self, block: base.Block) -> tuple[np.ndarray, np.ndarray]:
    """Returns bytes `[W, T + 1, step]` and `[W, 1, rest]` of a block."""
    steps = np.empty((block.width, self.num_steps), self.step)
    rest = np.empty((block.width, 1), self.rest)
    for i in self._steps:
      steps[str(i)] = block.leaves[i].swapaxes(0, 1)
    for i in self._others:
      rest[str(i)][:, 0] = block.leaves[i]
    return _bytes(steps), _bytes(rest)

  def unpack(
    self, item: items.DrawnItem, block: base.Block, index: int
  ) -> None:
    """Writes an item to column `index` of a block."""
    steps = np.empty(self.num_steps, self.step)
    rest = np.empty(1, self.rest)
    for task in item.decode([_bytes(steps), _bytes(rest)]):
      items.decode_into(*task)
    for i in self._steps:
      block.leaves[i][:, index] = steps[str(i)]
    for i in self._others:
      block.leaves[i][index] = rest[str(i)][0]


def _bytes(rows: np.ndarray) -> np.ndarray:
  """Returns a view of rows `[...]` of a structured type, `[..., bytes]`."""
  return rows.view(np.uint8).reshape(*rows.shape, rows.dtype.itemsize)


class UnrollEncoder:
  """Encodes each unroll of a block as an item; shares overlapping steps."""

  def __init__(self, rows: Rows, table: str, overlap: int):
    self._rows = rows
    self._table = table
    shares = overlap > 1 and overlap * rows.step.itemsize >= _OVERLAP_BYTES
    # First and last steps are apart, so that a whole chunk holds either.
    self._overlap = overlap if shares and 2 * overlap <= rows.num_steps else 0
    # By environment: contents and chunks of the last unroll's last steps.
    self._tails: dict[int, tuple[bytes, list[items.Slice]]] = {}

  def encode(
    self, block: base.Block, priorities: np.ndarray, mapper: Mapper
  ) -> items.Encoded:
    """Encodes a block, which may be written to again afterwards."""
    env_ids = block.unroll.env_id.tolist()
    steps, rest = self._rows.pack(block)
    encoded = list(
      mapper(self._encode_unroll, env_ids, steps, rest, priorities.tolist())
    )
    keep: dict[int, items.Chunk] = {}
    if self._overlap:
      for env_id, (_, tail) in zip(env_ids, encoded, strict=True):
        self._tails[env_id] = tail
    for _, slices in self._tails.values():
      keep.update((s.chunk.key, s.chunk) for s in slices)
    return items.Encoded([item for item, _ in encoded], list(keep.values()))

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


def decode_blocks(
  pool: blocks.BlockPool, mapper: Mapper, drawn: Sequence[items.DrawnItem]
) -> base.Sample:
  """Decodes a queue's items; raises ValueError if they do not fit."""
  taken = [pool.take() for _ in drawn]
  for item, block in zip(drawn, taken, strict=True):
    tasks = item.decode(block.leaves)
    list(mapper(items.decode_into, *zip(*tasks, strict=True)))
  return base.Sample(taken, pool.give_back)


def decode_unrolls(
  rows: Rows,
  pool: blocks.BlockPool,
  mapper: Mapper,
  update_priorities: Callable[[np.ndarray, np.ndarray], None],
  drawn: Sequence[items.DrawnItem],
) -> base.Sample:
  """Decodes a replay's items; raises ValueError if they do not fit."""
  taken = [pool.take() for _ in range(len(drawn) // pool.width)]
  places = [(block, i) for block in taken for i in range(pool.width)]
  list(mapper(rows.unpack, drawn, *zip(*places, strict=True)))
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
