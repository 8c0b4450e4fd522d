"""Items and their chunks: as messages to send, and as Reverb sends them."""

import secrets
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from seedrl_jax.replay.reverb import errors
from seedrl_jax.replay.reverb.client import codec
from seedrl_jax.replay.reverb.proto import reverb_pb2


class Chunk(NamedTuple):
  """Compressed rows of columns, which items may share."""

  key: int
  rows: int
  # An InsertStreamRequest of only this chunk; by protobuf's rules, concatenated
  # requests are one request.
  wire: bytes


class Item(NamedTuple):
  """An entry of a table; `chunks` are distinct, `wire` is as in `Chunk`."""

  key: int
  chunks: tuple[Chunk, ...]
  wire: bytes


class Slice(NamedTuple):
  """Rows `offset` to `offset + length` of column `column` of a chunk."""

  chunk: Chunk
  column: int
  offset: int
  length: int


class ItemColumn(NamedTuple):
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
  request = reverb_pb2.InsertStreamRequest()
  chunk = request.chunks.add(
    chunk_key=random_key(),
    sequence_range={'episode_id': random_key(), 'end': length - 1},
    data_tensors_len=len(columns),
    data_uncompressed_size=sum(column.nbytes for column in columns),
  )
  for tensor in map(codec.encode, columns):
    message = chunk.data.tensors.add(
      dtype=tensor.code, tensor_content=tensor.content
    )
    for size in tensor.shape:
      message.tensor_shape.dim.add(size=size)
  wire = request.SerializeToString()
  if len(wire) > errors.MAX_MESSAGE_BYTES:
    raise ValueError(
      f'A chunk of {len(wire) / 1e6:.0f} MB is more than one message to Reverb '
      'can carry; write fewer unrolls at once, or smaller observations.'
    )
  return Chunk(chunk.chunk_key, length, wire)


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
        chunk_key=s.chunk.key, offset=s.offset, length=s.length, index=s.column
      )
  request = reverb_pb2.InsertStreamRequest(items=[item])
  return Item(item.key, tuple(chunks.values()), request.SerializeToString())


def messages(
  entries: Sequence[Item], held: set[int], keep: set[int], size: int
) -> Iterator[bytes]:
  """Yields serialized InsertStreamRequests that insert items.

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
        yield b''.join(parts)
        parts, total = [], 0
      parts.append(chunk.wire)
      total += len(chunk.wire)
  held &= keep
  parts += [item.wire for item in entries]
  last = reverb_pb2.InsertStreamRequest(keep_chunk_keys=held)
  yield b''.join([*parts, last.SerializeToString()])


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

  def add(self, message: bytes) -> list[DrawnItem]:
    """Returns the samples that `message` completes."""
    complete = []
    for entry in reverb_pb2.SampleStreamResponse.FromString(message).entries:
      if entry.HasField('info'):
        self._info = entry.info
      for chunk in entry.data:
        if chunk.delta_encoded:
          raise ValueError(
            'A sample is delta encoded: another program wrote it; give this '
            'run tables of its own.'
          )
        self._chunks[chunk.chunk_key] = [
          codec.Tensor(
            tensor.dtype,
            tuple([dim.size for dim in tensor.tensor_shape.dim]),
            tensor.tensor_content,
          )
          for tensor in chunk.data.tensors
        ]
      if entry.end_of_sequence:
        complete.append(self._join())
        self._info, self._chunks = reverb_pb2.SampleInfo(), {}
    return complete

  def _join(self) -> DrawnItem:
    info, item = self._info, self._info.item
    columns = []
    for column in item.flat_trajectory.columns:
      slices = []
      for s in column.chunk_slices:
        tensor = self._chunks[s.chunk_key][s.index]
        slices.append(TensorSlice(tensor, s.offset, s.length))
      columns.append(SampledColumn(slices, column.squeeze))
    return DrawnItem(
      item.key, info.probability, info.table_size, item.priority, columns
    )
