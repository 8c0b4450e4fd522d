"""Items and their chunks: as messages to send, and as Reverb sends them.

Compression and decompression release the interpreter lock.
"""

import math
import secrets
import threading
from collections.abc import Iterator, Sequence, Set
from typing import NamedTuple

import cramjam
import numpy as np

from seedrl_jax.replay.reverb.proto import reverb_pb2

# Larger chunks and items are not sent: Reverb's own limit is 300 MB, but not
# every path into the server enforces it.
_MAX_MESSAGE_BYTES = 280 * 1000 * 1000
# tensorflow.DataType of the supported element types.
_CODES = {
  'float32': 1,
  'float64': 2,
  'int32': 3,
  'uint8': 4,
  'int16': 5,
  'int8': 6,
  'int64': 9,
  'bool': 10,
  'bfloat16': 14,
  'uint16': 17,
  'float16': 19,
  'uint32': 22,
  'uint64': 23,
}

_snappy = cramjam.snappy

# Each thread's own memory for data that cannot be written in place.
_scratch = threading.local()
# Arguments of `decode_into`.
Task = tuple[reverb_pb2.Tensor, np.ndarray, int]


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
  """What one insert sends, and keys of chunks that later items may share."""

  items: Sequence[Item]
  keep: Set[int] = frozenset()


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
  for column in columns:
    encode_tensor(column, chunk.data.tensors.add())
  wire = request.SerializeToString()
  if len(wire) > _MAX_MESSAGE_BYTES:
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
  entries: Sequence[Item], held: set[int], keep: Set[int], size: int
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


class DrawnItem(NamedTuple):
  """An item, with its state at the draw, and its chunks by key."""

  info: reverb_pb2.SampleInfo
  chunks: dict[int, reverb_pb2.ChunkData]

  def decode(self, outs: Sequence[np.ndarray]) -> list[Task]:
    """Returns calls of `decode_into` that decode columns to `outs`.

    A column's leading 1 is dropped if it is squeezed. Raises ValueError if the
    columns do not fit.
    """
    columns = self.info.item.flat_trajectory.columns
    if len(columns) != len(outs):
      raise ValueError(
        f'An item has {len(columns)} columns where this run writes '
        f'{len(outs)}: another program wrote it, or another configuration; '
        'give this run tables of its own.'
      )
    tasks = []
    for column, out in zip(columns, outs, strict=True):
      rest = out[np.newaxis] if column.squeeze else out
      length = sum(s.length for s in column.chunk_slices)
      if length != len(rest):
        raise ValueError(
          f'An item has {length} steps where an unroll has {len(rest)}: it was '
          'written with another --config.unroll_length; give this run tables '
          'of its own.'
        )
      for s in column.chunk_slices:
        tensor = self.chunks[s.chunk_key].data.tensors[s.index]
        tasks.append((tensor, rest[: s.length], s.offset))
        rest = rest[s.length :]
    return tasks


class Joiner:
  """Assembles samples from the entries of one stream."""

  def __init__(self) -> None:
    self._item = DrawnItem(reverb_pb2.SampleInfo(), {})

  def add(self, message: bytes) -> list[DrawnItem]:
    """Returns the samples that `message` completes."""
    complete = []
    for entry in reverb_pb2.SampleStreamResponse.FromString(message).entries:
      if entry.HasField('info'):
        self._item = DrawnItem(entry.info, {})
      self._item.chunks.update((chunk.chunk_key, chunk) for chunk in entry.data)
      if entry.end_of_sequence:
        complete.append(self._item)
    return complete


def _take(name: str, size: int) -> np.ndarray:
  """Returns `size` bytes, valid until this thread's next call for `name`."""
  memory = getattr(_scratch, name, None)
  if memory is None or memory.size < size:
    memory = np.empty(size, np.uint8)
    setattr(_scratch, name, memory)
  return memory[:size]


def encode_tensor(column: np.ndarray, tensor: reverb_pb2.Tensor) -> None:
  """Compresses `[rows, ...]` to `tensor`; ValueError for other types."""
  name = column.dtype.name
  if name not in _CODES:
    raise ValueError(f'Reverb cannot hold arrays of type {column.dtype}.')
  if not column.dtype.isnative:
    column = column.astype(column.dtype.newbyteorder('='))
  raw = np.ascontiguousarray(column).reshape(-1).view(np.uint8).data
  memory = _take('encoded', _snappy.compress_raw_max_len(raw)).data
  size = _snappy.compress_raw_into(raw, memory)
  tensor.dtype = _CODES[name]
  tensor.tensor_content = bytes(memory[:size])
  for length in column.shape:
    tensor.tensor_shape.dim.add(size=length)


def decode_into(
  tensor: reverb_pb2.Tensor, out: np.ndarray, offset: int = 0
) -> None:
  """Decompresses rows `offset` to `offset + n` to `out`, `[n, ...]`.

  `out` may have any strides; if it is contiguous and all rows are wanted, they
  are decompressed in place.

  Raises ValueError if shape or type do not fit, or the bytes are damaged.
  """
  shape = tuple([dim.size for dim in tensor.tensor_shape.dim])
  content = tensor.tensor_content
  end = offset + out.shape[0]
  fits = out.shape[1:] == shape[1:] and end <= shape[0]
  if tensor.dtype != _CODES.get(out.dtype.name) or not fits:
    raise ValueError(
      f'A tensor of TensorFlow type {tensor.dtype} and {list(shape)} from row '
      f'{offset} on was to fill {out.dtype}{list(out.shape)}; the unrolls in '
      'the table are of another kind.'
    )
  is_whole = out.shape[0] == shape[0] and out.flags.c_contiguous
  if is_whole:
    raw = out.reshape(-1).view(np.uint8)
  else:
    raw = _take('decoded', math.prod(shape) * out.itemsize)
  try:
    size = _snappy.decompress_raw_len(content)
    if size != raw.size:
      raise ValueError(f'A tensor has {size} bytes and not {raw.size}.')
    # Snappy refuses an empty destination.
    if size:
      _snappy.decompress_raw_into(content, raw.data)
  except cramjam.DecompressionError as e:
    raise ValueError(f'A tensor is damaged: {e}') from e
  if not is_whole:
    out[...] = raw.view(out.dtype).reshape(shape)[offset:end]
