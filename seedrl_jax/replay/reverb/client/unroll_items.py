"""Encodes blocks of unrolls as chunks and items, and decodes samples.

*   A queue's item is a block. Each leaf under `steps` is a column of T + 1
    rows `[W, ...]`, cut into chunks of about a megabyte for several threads;
    every other leaf is a column of one row `[W, ...]`.
*   A replay's item is one unroll: columns of T + 1 rows `[...]` for
    leaves under `steps`, of one row for the others. Consecutive unrolls of an
    environment share the chunks of overlapping steps.

One-row columns are squeezed, as the official client writes a scalar step.
"""

import abc
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from seedrl_jax.replay import base, blocks
from seedrl_jax.replay.reverb.client import codec, items

# Bytes that a thread compresses or decompresses at once.
_CHUNK_BYTES = 1 << 20
# The largest chunk of one unroll: far below a message's limit, and far above
# most unrolls, which stay whole.
_UNROLL_CHUNK_BYTES = 1 << 25

# Maps a function, perhaps in parallel; returns results in order.
Mapper = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


# Encodes a block, which may be written to again afterwards, and its priorities.
Encode = Callable[[base.Block, np.ndarray, Mapper], items.Encoded]


def encode_block(
  time_major: Sequence[bool], table: str, block: base.Block, mapper: Mapper
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
  slices = [items.Slice(chunk, 0, 0, chunk.rows) for chunk in chunks]
  columns = _columns(time_major, slices, last)
  return items.Encoded([items.make_item(table, 1.0, columns)])


class UnrollEncoder:
  """Encodes each unroll of a block as an item; shares overlapping steps."""

  def __init__(self, layout: blocks.UnrollLayout, table: str):
    self._layout = layout
    self._table = table
    # An overlap of one step is not worth a chunk.
    self._overlap = layout.overlap if layout.overlap > 1 else 0
    # By environment: contents and slices of the last unroll's last steps.
    self._tails: dict[int, tuple[bytes, list[items.Slice]]] = {}

  def encode(
    self, block: base.Block, priorities: np.ndarray, mapper: Mapper
  ) -> items.Encoded:
    """See `Encode`."""
    made = list(
      mapper(
        lambda column: self._encode_unroll(
          block, column, float(priorities[column])
        ),
        range(block.width),
      )
    )
    keep: dict[int, items.Chunk] = {}
    env_ids = block.unroll.env_id.tolist()
    for env_id, (_, tail) in zip(env_ids, made, strict=True):
      if self._overlap:
        self._tails[env_id] = tail
    for _, slices in self._tails.values():
      keep.update((s.chunk.key, s.chunk) for s in slices)
    return items.Encoded([item for item, _ in made], list(keep.values()))

  def _encode_unroll(
    self, block: base.Block, column: int, priority: float
  ) -> tuple[items.Item, tuple[bytes, list[items.Slice]]]:
    steps, rest = [], []
    for leaf, major in zip(block.leaves, self._layout.time_major, strict=True):
      if major:
        steps.append(np.ascontiguousarray(leaf[:, column]))
      else:
        rest.append(leaf[column : column + 1])
    chunks = self._head(int(block.unroll.env_id[column]), steps)
    first = [leaf[: self._overlap] for leaf in steps]
    fresh = [leaf[self._overlap :] for leaf in steps]
    # Cut after the overlap, so that a tail keeps no more than it needs.
    parts = [fresh] if chunks or not self._overlap else [first, fresh]
    for part in parts:
      for piece in _cut(part, _UNROLL_CHUNK_BYTES):
        chunk = items.encode_chunk(piece)
        chunks = [*chunks, items.Slice(chunk, 0, 0, chunk.rows)]
    last = items.encode_chunk(rest)
    columns = _columns(self._layout.time_major, chunks, last)
    item = items.make_item(self._table, priority, columns)
    return item, self._tail(steps, chunks)

  def _head(
    self, env_id: int, steps: Sequence[np.ndarray]
  ) -> list[items.Slice]:
    """Returns the slices that already hold the unroll's first steps, if any."""
    # Compares contents: an environment that went away meanwhile starts anew.
    if not self._overlap or env_id not in self._tails:
      return []
    contents, slices = self._tails[env_id]
    same = contents == _contents([leaf[: self._overlap] for leaf in steps])
    return list(slices) if same else []

  def _tail(
    self, steps: Sequence[np.ndarray], slices: Sequence[items.Slice]
  ) -> tuple[bytes, list[items.Slice]]:
    if not self._overlap:
      return b'', []
    tail: list[items.Slice] = []
    missing = self._overlap
    for s in reversed(slices):
      length = min(missing, s.length)
      if length:
        offset = s.offset + s.length - length
        tail.insert(0, items.Slice(s.chunk, 0, offset, length))
      missing -= length
    return _contents([leaf[-self._overlap :] for leaf in steps]), tail


def _cut(columns: Sequence[np.ndarray], size: int) -> list[list[np.ndarray]]:
  """Cuts columns of equal rows into pieces of about `size` bytes."""
  rows = len(columns[0])
  at_once = max(1, size * rows // max(1, sum(c.nbytes for c in columns)))
  return [
    [column[start : start + at_once] for column in columns]
    for start in range(0, rows, at_once)
  ]


def _contents(leaves: Sequence[np.ndarray]) -> bytes:
  """Returns all bytes; a hash would take as long as compressing them."""
  return b''.join(leaf.tobytes() for leaf in leaves)


def _columns(
  time_major: Sequence[bool],
  steps: Sequence[items.Slice],
  rest: items.Chunk,
) -> list[items.ItemColumn]:
  columns = []
  of_steps, of_rest = itertools.count(), itertools.count()
  for major in time_major:
    if major:
      index = next(of_steps)
      slices = [dataclasses.replace(part, index=index) for part in steps]
      columns.append(items.ItemColumn(slices))
    else:
      last = items.Slice(rest, next(of_rest), 0, 1)
      columns.append(items.ItemColumn([last], True))
  return columns


class Decoder(abc.ABC):
  """Decodes batches of `batch_size` unrolls from `num_items` samples."""

  def __init__(
    self,
    layout: blocks.UnrollLayout,
    batch_size: int,
    num_blocks: int,
    mapper: Mapper,
  ):
    self.batch_size = batch_size
    self._num_blocks = num_blocks
    self._mapper = mapper
    self._pool = blocks.BlockPool(layout, batch_size // num_blocks)

  @property
  @abc.abstractmethod
  def num_items(self) -> int: ...

  @abc.abstractmethod
  def decode(self, drawn: Sequence[items.DrawnItem]) -> base.Sample:
    """Decodes a batch; raises ValueError if the samples do not fit."""


class BlockDecoder(Decoder):
  """Decodes a queue's items, which are blocks."""

  @property
  def num_items(self) -> int:
    return self._num_blocks

  def decode(self, drawn: Sequence[items.DrawnItem]) -> base.Sample:
    taken = [self._pool.take() for _ in drawn]
    for sample, block in zip(drawn, taken, strict=True):
      _check_columns(sample.columns, block)
      tasks: list[tuple[items.TensorSlice, np.ndarray]] = []
      for column, leaf in zip(sample.columns, block.leaves, strict=True):
        out = leaf[np.newaxis] if column.squeeze else leaf
        tasks += _pieces(column, out)
      list(self._mapper(_decode, tasks))
    return base.Sample(taken, self._pool.give_back)


class UnrollDecoder(Decoder):
  """Decodes a replay's items, which are unrolls."""

  def __init__(
    self,
    layout: blocks.UnrollLayout,
    batch_size: int,
    num_blocks: int,
    mapper: Mapper,
    update_priorities: Callable[[np.ndarray, np.ndarray], None],
  ):
    super().__init__(layout, batch_size, num_blocks, mapper)
    self._update_priorities = update_priorities

  @property
  def num_items(self) -> int:
    return self.batch_size

  def decode(self, drawn: Sequence[items.DrawnItem]) -> base.Sample:
    taken = [self._pool.take() for _ in range(self._num_blocks)]
    width = self._pool.width
    for i, block in enumerate(taken):
      _decode_unrolls(drawn[i * width : (i + 1) * width], block, self._mapper)
    keys = np.array([s.key for s in drawn], np.uint64)
    return base.ReplaySample(
      blocks=taken,
      on_release=self._pool.give_back,
      keys=keys,
      probabilities=np.array([s.probability for s in drawn], np.float32),
      table_size=np.array([s.table_size for s in drawn], np.float32),
      priorities=np.array([s.priority for s in drawn]),
      on_update=functools.partial(self._update_priorities, keys),
    )


def _decode_unrolls(
  drawn: Sequence[items.DrawnItem], block: base.Block, mapper: Mapper
) -> None:
  def decode(index: int) -> None:
    columns = drawn[index].columns
    _check_columns(columns, block)
    for column, leaf in zip(columns, block.leaves, strict=True):
      out = leaf[index : index + 1] if column.squeeze else leaf[:, index]
      for task in _pieces(column, out):
        _decode(task)

  list(mapper(decode, range(len(drawn))))


def _check_columns(
  columns: Sequence[items.SampledColumn], block: base.Block
) -> None:
  if len(columns) != len(block.leaves):
    raise ValueError(
      f'An item has {len(columns)} columns where an unroll has '
      f'{len(block.leaves)}: another program wrote it, or another '
      'configuration; give this run tables of its own.'
    )


def _pieces(
  column: items.SampledColumn, out: np.ndarray
) -> list[tuple[items.TensorSlice, np.ndarray]]:
  """Pairs the slices of a column with their rows of `out`."""
  if column.rows != len(out):
    raise ValueError(
      f'An item has {column.rows} steps where an unroll has {len(out)}: it was '
      'written with another --config.unroll_length; give this run tables of '
      'its own.'
    )
  result = []
  row = 0
  for s in column.slices:
    result.append((s, out[row : row + s.length]))
    row += s.length
  return result


def _decode(task: tuple[items.TensorSlice, np.ndarray]) -> None:
  source, out = task
  codec.decode_into(source.tensor, out, source.offset)
