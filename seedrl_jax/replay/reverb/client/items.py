"""Items and their chunks: as messages to send, and as Reverb sends them."""

import dataclasses
import secrets
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from seedrl_jax.replay.reverb import errors
from seedrl_jax.replay.reverb.client import codec
from seedrl_jax.replay.reverb.proto import reverb_pb2

_REQUEST_CHUNKS = reverb_pb2.InsertStreamRequest.CHUNKS_FIELD_NUMBER
_CHUNK_DATA = reverb_pb2.ChunkData.DATA_FIELD_NUMBER
_DATA_TENSORS = reverb_pb2.ChunkData.Data.TENSORS_FIELD_NUMBER
_TENSOR_CONTENT = reverb_pb2.Tensor.TENSOR_CONTENT_FIELD_NUMBER

# Up to this size the generated parser, which copies, is faster than ours.
_SMALL_BYTES = 1 << 12

_Response = reverb_pb2.SampleStreamResponse
_Entry = _Response.SampleEntry
_ChunkData = reverb_pb2.ChunkData
_Tensor = reverb_pb2.Tensor


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
  """Compresses columns `[rows, ...]`; ValueError if they are too large."""
  length = len(columns[0])
  data = reverb_pb2.ChunkData(
    chunk_key=random_key(),
    sequence_range={'episode_id': random_key(), 'end': length - 1},
    data_tensors_len=len(columns),
    data_uncompressed_size=sum(column.nbytes for column in columns),
  )
  tensors: list[codec.Buffer] = []
  for tensor in codec.encode(columns):
    tensors += codec.field(_DATA_TENSORS, _tensor_parts(tensor))
  contents = codec.field(_CHUNK_DATA, tensors)
  parts = codec.field(_REQUEST_CHUNKS, [data.SerializeToString(), *contents])
  size = sum(len(part) for part in parts)
  if size > errors.MAX_MESSAGE_BYTES:
    raise ValueError(
      f'A chunk of {size / 1e6:.0f} MB is more than one message to Reverb can '
      'carry; write fewer unrolls at once, or smaller observations.'
    )
  return Chunk(data.chunk_key, length, b''.join(parts))


def _tensor_parts(tensor: codec.Tensor) -> list[codec.Buffer]:
  head = reverb_pb2.Tensor(dtype=tensor.code)
  for length in tensor.shape:
    head.tensor_shape.dim.add().size = length
  content = codec.field(_TENSOR_CONTENT, [tensor.content])
  return [head.SerializeToString(), *content]


def make_item(
  table: str, priority: float, columns: Sequence[ItemColumn]
) -> Item:
  item = reverb_pb2.PrioritizedItem(
    key=random_key(), table=table, priority=priority
  )
  chunks: dict[int, Chunk] = {}
  for column in columns:
    entry = item.flat_trajectory.columns.add(squeeze=column.squeeze)
    for s in column.slices:
      chunks[s.chunk.key] = s.chunk
      entry.chunk_slices.add(
        chunk_key=s.chunk.key, offset=s.offset, length=s.length, index=s.index
      )
  request = reverb_pb2.InsertStreamRequest(items=[item])
  return Item(item.key, tuple(chunks.values()), request.SerializeToString())


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


class TensorSlice(NamedTuple):
  """Rows `offset` to `offset + length` of a compressed tensor `[rows, ...]`."""

  tensor: codec.Tensor
  offset: int
  length: int


class SampledColumn(NamedTuple):
  """Slices of a column in order; `squeeze` drops the leading 1 of one row."""

  slices: Sequence[TensorSlice]
  squeeze: bool


class DrawnItem(NamedTuple):
  """An item, with its state at the draw; `table_size` is in items."""

  key: int
  probability: float
  table_size: int
  priority: float
  columns: Sequence[SampledColumn]


class Joiner:
  """Assembles samples from the entries of one stream."""

  def __init__(self) -> None:
    self._info = reverb_pb2.SampleInfo()
    self._chunks: dict[int, Sequence[codec.Tensor]] = {}

  def add(self, message: codec.Buffer) -> list[DrawnItem]:
    """Returns the samples that `message` completes, as views of it."""
    complete = []
    for number, _, entry in codec.fields(memoryview(message)):
      if number == _Response.ENTRIES_FIELD_NUMBER and self._add(entry):
        complete.append(self._join())
        self._chunks = {}
    return complete

  def _add(self, entry: memoryview) -> bool:
    """Returns whether the entry is the last of its sample."""
    last = False
    for number, value, content in codec.fields(entry):
      if number == _Entry.DATA_FIELD_NUMBER:
        self._chunks.update([_parse_chunk(content)])
      elif number == _Entry.INFO_FIELD_NUMBER:
        self._info = reverb_pb2.SampleInfo.FromString(bytes(content))
      elif number == _Entry.END_OF_SEQUENCE_FIELD_NUMBER:
        last = bool(value)
    return last

  def _join(self) -> DrawnItem:
    info = self._info
    columns = []
    for column in info.item.flat_trajectory.columns:
      slices = []
      for s in column.chunk_slices:
        tensor = self._chunks[s.chunk_key][s.index]
        slices.append(TensorSlice(tensor, s.offset, s.length))
      columns.append(SampledColumn(slices, column.squeeze))
    item = info.item
    return DrawnItem(
      item.key, info.probability, info.table_size, item.priority, columns
    )


def _parse_chunk(message: memoryview) -> tuple[int, Sequence[codec.Tensor]]:
  if len(message) < _SMALL_BYTES:
    chunk = _ChunkData.FromString(bytes(message))
    _check_encoding(chunk.delta_encoded)
    return chunk.chunk_key, [
      codec.Tensor(t.dtype, _shape(t.tensor_shape), t.tensor_content)
      for t in chunk.data.tensors
    ]
  key = 0
  tensors: list[codec.Tensor] = []
  for number, value, content in codec.fields(message):
    if number == _ChunkData.CHUNK_KEY_FIELD_NUMBER:
      key = value
    elif number == _ChunkData.DELTA_ENCODED_FIELD_NUMBER:
      _check_encoding(bool(value))
    elif number == _ChunkData.DATA_FIELD_NUMBER:
      # It contains nothing but tensors.
      tensors += [_parse_tensor(part) for _, _, part in codec.fields(content)]
  return key, tensors


def _check_encoding(is_delta: bool) -> None:
  if is_delta:
    raise ValueError(
      'A sample is delta encoded: another program wrote it; give this run '
      'tables of its own.'
    )


def _parse_tensor(message: memoryview) -> codec.Tensor:
  code, compressed = 0, message[:0]
  shape: tuple[int, ...] = ()
  for number, value, content in codec.fields(message):
    if number == _Tensor.DTYPE_FIELD_NUMBER:
      code = value
    elif number == _Tensor.TENSOR_SHAPE_FIELD_NUMBER:
      shape = _shape(reverb_pb2.TensorShape.FromString(bytes(content)))
    elif number == _Tensor.TENSOR_CONTENT_FIELD_NUMBER:
      compressed = content
  return codec.Tensor(code, shape, compressed)


def _shape(shape: reverb_pb2.TensorShape) -> tuple[int, ...]:
  return tuple([dim.size for dim in shape.dim])
