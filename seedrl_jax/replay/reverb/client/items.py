"""Chunks of rows and the items that refer to them, encoded for the wire."""

import dataclasses
import secrets
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from seedrl_jax.replay.reverb.client import codec, errors, wire
from seedrl_jax.replay.reverb.proto import reverb_pb2

_REQUEST_CHUNKS = reverb_pb2.InsertStreamRequest.CHUNKS_FIELD_NUMBER
_CHUNK_DATA = reverb_pb2.ChunkData.DATA_FIELD_NUMBER
_DATA_TENSORS = reverb_pb2.ChunkData.Data.TENSORS_FIELD_NUMBER
_TENSOR_CONTENT = reverb_pb2.Tensor.TENSOR_CONTENT_FIELD_NUMBER


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Chunk:
  """Compressed rows of columns, which items may share.

  `wire` is an InsertStreamRequest of only this chunk; by protobuf's rules,
  concatenated requests are one request.
  """

  key: int
  rows: int
  wire: bytes


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Item:
  """An entry of a table; `chunks` are distinct, `wire` is as in `Chunk`."""

  key: int
  table: str
  chunks: tuple[Chunk, ...]
  wire: bytes


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Slice:
  """Rows `offset` to `offset + length` of column `index` of a chunk."""

  chunk: Chunk
  index: int
  offset: int
  length: int


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class ItemColumn:
  """Slices of an item's column; `squeeze` drops the leading 1 of one row."""

  slices: Sequence[Slice]
  squeeze: bool = False


class Encoded(NamedTuple):
  """What one insert sends; later items may refer to the chunks in `keep`."""

  items: Sequence[Item]
  keep: Sequence[Chunk] = ()


def encode_chunk(columns: Sequence[np.ndarray]) -> Chunk:
  """Compresses columns `[rows, ...]`; ValueError if they cannot be a chunk."""
  rows = {column.shape[0] for column in columns if column.ndim}
  if len(rows) != 1 or 0 in rows or not all(c.ndim for c in columns):
    shapes = [column.shape for column in columns]
    raise ValueError(f'Columns of a chunk need the same rows; got {shapes}.')
  length = rows.pop()
  data = reverb_pb2.ChunkData(
    chunk_key=random_key(),
    sequence_range=reverb_pb2.SequenceRange(
      episode_id=random_key(), start=0, end=length - 1
    ),
    data_tensors_len=len(columns),
    data_uncompressed_size=sum(column.nbytes for column in columns),
  )
  tensors: list[wire.Buffer] = []
  for tensor in codec.encode(columns):
    tensors += wire.field(_DATA_TENSORS, _tensor_parts(tensor))
  contents = wire.field(_CHUNK_DATA, tensors)
  parts = wire.field(_REQUEST_CHUNKS, [data.SerializeToString(), *contents])
  size = sum(len(part) for part in parts)
  if size > errors.MAX_MESSAGE_BYTES:
    raise ValueError(
      f'A chunk of {size / 1e6:.0f} MB is more than one message to Reverb can '
      'carry; write fewer unrolls at once, or smaller observations.'
    )
  return Chunk(data.chunk_key, length, b''.join(parts))


def _tensor_parts(tensor: codec.Tensor) -> list[wire.Buffer]:
  shape = reverb_pb2.TensorShape()
  for length in tensor.shape:
    shape.dim.add().size = length
  head = reverb_pb2.Tensor(dtype=tensor.code, tensor_shape=shape)
  content = wire.field(_TENSOR_CONTENT, [tensor.content])
  return [head.SerializeToString(), *content]


def make_item(
  table: str, priority: float, columns: Sequence[ItemColumn]
) -> Item:
  """Returns an item; ValueError if a slice is not inside its chunk."""
  item = reverb_pb2.PrioritizedItem(
    key=random_key(), table=table, priority=priority
  )
  chunks: dict[int, Chunk] = {}
  for column in columns:
    entry = item.flat_trajectory.columns.add(squeeze=column.squeeze)
    for s in column.slices:
      if s.offset < 0 or not 0 < s.length <= s.chunk.rows - s.offset:
        raise ValueError(
          f'Rows {s.offset} to {s.offset + s.length} are not all in a chunk of '
          f'{s.chunk.rows}.'
        )
      chunks[s.chunk.key] = s.chunk
      entry.chunk_slices.add(
        chunk_key=s.chunk.key, offset=s.offset, length=s.length, index=s.index
      )
  request = reverb_pb2.InsertStreamRequest(items=[item])
  chunk_set = tuple(chunks.values())
  return Item(item.key, table, chunk_set, request.SerializeToString())


def messages(
  entries: Sequence[Item], held: set[int], keep: set[int], size: int
) -> Iterator[list[bytes]]:
  """Yields serialized InsertStreamRequests that insert items, each in parts.

  Args:
    held: keys of chunks that the server holds for the stream; updated.
    keep: keys of chunks that it should hold afterwards, if it has them.
    size: bytes of chunks that go with the items; more are sent ahead.
  """
  parts: list[bytes] = []
  total = 0
  for item in entries:
    for chunk in item.chunks:
      if chunk.key in held:
        continue
      held.add(chunk.key)
      # A request of only chunks drops none, so it may go ahead.
      if parts and total + len(chunk.wire) > size:
        yield parts
        parts, total = [], 0
      parts.append(chunk.wire)
      total += len(chunk.wire)
  held &= keep
  parts += [item.wire for item in entries]
  last = reverb_pb2.InsertStreamRequest(keep_chunk_keys=held)
  yield [*parts, last.SerializeToString()]


def random_key() -> int:
  """Returns a random 64-bit number other than zero."""
  return secrets.randbits(64) or random_key()
