"""Blocks of unrolls as chunks and items, and samples as blocks again.

Used by `writer.py` and `sampler.py`. How an unroll lies in an item:

*   A queue's item is a block. Each leaf under `steps` is a column of T + 1
    rows `[W, ...]`, cut into chunks of about a megabyte that several threads
    work on; every other leaf, and the priorities, are columns of one row
    `[W, ...]`.
*   Another table's item is one unroll: columns of T + 1 rows `[...]` for the
    leaves under `steps`, of one row `[...]` for the others. Consecutive
    unrolls of an environment share the chunks of the steps that they overlap
    by.

One-row columns are squeezed, as the official client writes a scalar step.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import numpy as np

from seedrl_jax.replay import base, blocks
from seedrl_jax.replay.reverb.client import codec, items, samples

# What a thread compresses or decompresses at once.
_CHUNK_BYTES = 1 << 20
# What a chunk of a single unroll is at most: far below what a message can
# carry, and far above what unrolls are as a rule, which stay whole.
_UNROLL_CHUNK_BYTES = 1 << 25

# Runs functions, in order or side by side; gives their results in order.
Mapper = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


class Encoded(NamedTuple):
  """What one insert hands to the server.

  Attributes:
    items: in order.
    keep: chunks that later items may refer to.
  """

  items: list[items.Item]
  keep: list[items.Chunk]


class BlockEncoder:
  """Makes one item of a block, for a queue."""

  def __init__(self, layout: blocks.UnrollLayout, table: str):
    """Makes an encoder of unrolls of `layout` for `table`."""
    self._layout = layout
    self._table = table

  def encode(
    self, block: base.Block, priorities: np.ndarray, mapper: Mapper
  ) -> Encoded:
    """Encodes a block, which may be written to again afterwards."""
    steps = [
      leaf
      for leaf, major in zip(block.leaves, self._layout.time_major, strict=True)
      if major
    ]
    rest = [
      leaf[np.newaxis]
      for leaf, major in zip(block.leaves, self._layout.time_major, strict=True)
      if not major
    ]
    parts = _cut(steps, _CHUNK_BYTES)
    parts.append([*rest, priorities[np.newaxis]])
    *chunks, last = mapper(items.encode_chunk, parts)
    columns = _columns(self._layout.time_major, chunks, last)
    columns.append(items.Column([items.Slice(last, len(rest), 0, 1)], True))
    item = items.make_item(self._table, 1.0, columns)
    return Encoded([item], [])


class UnrollEncoder:
  """Makes an item of each unroll of a block; shares overlapping steps."""

  def __init__(self, layout: blocks.UnrollLayout, table: str, overlap: int):
    """Makes an encoder.

    Args:
      layout: of the unrolls.
      table: where the items go.
      overlap: steps that consecutive unrolls of an environment share. One
        step is not worth a chunk.
    """
    self._layout = layout
    self._table = table
    self._overlap = overlap if overlap > 1 else 0
    # By environment: contents and slices of the last unroll's last steps.
    self._tails: dict[int, tuple[bytes, list[items.Slice]]] = {}

  def encode(
    self, block: base.Block, priorities: np.ndarray, mapper: Mapper
  ) -> Encoded:
    """See `BlockEncoder.encode`."""
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
    return Encoded([item for item, _ in made], list(keep.values()))

  def _encode_unroll(
    self, block: base.Block, column: int, priority: float
  ) -> tuple[items.Item, tuple[bytes, list[items.Slice]]]:
    steps, rest = [], []
    for leaf, major in zip(block.leaves, self._layout.time_major, strict=True):
      if major:
        steps.append(np.ascontiguousarray(leaf[:, column]))
      else:
        rest.append(leaf[column : column + 1])
    env_id = int(block.unroll.env_id[column])
    head, body = self._head(env_id, steps), self._overlap
    if head is None:
      head, body = [], 0
    chunks = head
    fresh = [leaf[body:] for leaf in steps]
    if self._overlap and not body:
      # So that a tail never keeps more than the steps it is about.
      parts = [
        [leaf[: self._overlap] for leaf in steps],
        [leaf[self._overlap :] for leaf in steps],
      ]
    else:
      parts = [fresh]
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
  ) -> list[items.Slice] | None:
    """Returns where the unroll's first steps already are, if they are.

    By the steps themselves and not by counting: an environment that went away
    meanwhile starts anew.
    """
    if not self._overlap or env_id not in self._tails:
      return None
    contents, slices = self._tails[env_id]
    same = contents == _contents([leaf[: self._overlap] for leaf in steps])
    return list(slices) if same else None

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
  """Returns all bytes: hashing them would take as long as compressing them."""
  return b''.join(leaf.tobytes() for leaf in leaves)


def _columns(
  time_major: Sequence[bool],
  steps: Sequence[items.Chunk] | Sequence[items.Slice],
  rest: items.Chunk,
) -> list[items.Column]:
  """Returns the columns of an item, one for each leaf in order."""
  columns = []
  counts = {True: 0, False: 0}
  for major in time_major:
    index = counts[major]
    counts[major] += 1
    if major:
      slices = [_slice(chunk, index) for chunk in steps]
      columns.append(items.Column(slices))
    else:
      columns.append(items.Column([items.Slice(rest, index, 0, 1)], True))
  return columns


def _slice(source: items.Chunk | items.Slice, index: int) -> items.Slice:
  if isinstance(source, items.Chunk):
    return items.Slice(source, index, 0, source.rows)
  return items.Slice(source.chunk, index, source.offset, source.length)


def decode_block(
  sample: samples.Sample, block: base.Block, mapper: Mapper
) -> np.ndarray:
  """Writes a queue's sample to a block; returns the priorities, `[W]`.

  Raises:
    ValueError: where the sample is not such a block.
  """
  *columns, last = sample.columns
  _check_columns(columns, block)
  tasks: list[tuple[samples.TensorSlice, np.ndarray]] = []
  for column, leaf in zip(columns, block.leaves, strict=True):
    out = leaf[np.newaxis] if column.squeeze else leaf
    tasks += _pieces(column, out)
  list(mapper(_decode, tasks))
  (piece,) = last.slices
  priorities = np.empty((1, block.width), piece.tensor.dtype)
  _decode((piece, priorities))
  return priorities[0]


def decode_unrolls(
  drawn: Sequence[samples.Sample],
  block: base.Block,
  mapper: Mapper,
) -> None:
  """Writes samples of single unrolls to a block's columns, in order.

  Raises:
    ValueError: where they are not such unrolls.
  """

  def decode(index: int) -> None:
    columns = drawn[index].columns
    _check_columns(columns, block)
    for column, leaf in zip(columns, block.leaves, strict=True):
      out = leaf[index : index + 1] if column.squeeze else leaf[:, index]
      for task in _pieces(column, out):
        _decode(task)

  list(mapper(decode, range(len(drawn))))


def _check_columns(
  columns: Sequence[samples.SampledColumn], block: base.Block
) -> None:
  if len(columns) != len(block.leaves):
    raise ValueError(
      f'An item has {len(columns)} columns where an unroll has '
      f'{len(block.leaves)}: another program wrote it, or another '
      'configuration; give this run tables of its own.'
    )


def _pieces(
  column: samples.SampledColumn, out: np.ndarray
) -> list[tuple[samples.TensorSlice, np.ndarray]]:
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


def _decode(task: tuple[samples.TensorSlice, np.ndarray]) -> None:
  source, out = task
  codec.decode_into(source.tensor, out, source.offset)


class Workers:
  """Threads that compress and decompress, named `reverb-codec-...`."""

  def __init__(self, count: int):
    """Starts no thread before there is work."""
    self._count = count
    self._executor = futures.ThreadPoolExecutor(count, 'reverb-codec')

  def map(
    self, function: Callable[[Any], Any], arguments: Iterable[Any]
  ) -> list[Any]:
    """Returns the results in order; raises the first error."""
    arguments = list(arguments)
    if self._count == 1 or len(arguments) < 2:
      return [function(argument) for argument in arguments]
    return list(self._executor.map(function, arguments))

  def close(self) -> None:
    """Ends the threads when they have done what was given to them."""
    self._executor.shutdown()
