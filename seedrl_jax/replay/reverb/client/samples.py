"""Samples as Reverb sends them, assembled but not yet decompressed."""

from collections.abc import Sequence
from typing import NamedTuple

from seedrl_jax.replay.reverb.client import codec, wire
from seedrl_jax.replay.reverb.proto import reverb_pb2

_Response = reverb_pb2.SampleStreamResponse
_Entry = _Response.SampleEntry
_ChunkData = reverb_pb2.ChunkData
_Tensor = reverb_pb2.Tensor


class TensorSlice(NamedTuple):
  """Rows `offset` to `offset + length` of a compressed tensor `[rows, ...]`."""

  tensor: codec.Tensor
  offset: int
  length: int


class SampledColumn(NamedTuple):
  """Slices of a column in order; `squeeze` drops the leading 1 of one row."""

  slices: Sequence[TensorSlice]
  squeeze: bool

  @property
  def rows(self) -> int:
    return sum(s.length for s in self.slices)


class DrawnItem(NamedTuple):
  """A drawn item.

  Attributes:
    probability, table_size, priority: at the draw; the size is in items.
    times_sampled: draws of the item so far, including this one.
    size: bytes on the wire.
  """

  key: int
  probability: float
  table_size: int
  priority: float
  times_sampled: int
  columns: Sequence[SampledColumn]
  size: int


class Joiner:
  """Assembles samples from the entries of one stream."""

  def __init__(self) -> None:
    self._start()

  def _start(self) -> None:
    self._info = reverb_pb2.SampleInfo()
    self._chunks: dict[int, Sequence[codec.Tensor]] = {}
    self._size = 0

  def add(self, message: wire.Buffer) -> list[DrawnItem]:
    """Returns the samples that `message` completes, as views of it."""
    complete = []
    for number, _, entry in wire.fields(memoryview(message)):
      if number == _Response.ENTRIES_FIELD_NUMBER and self._add(entry):
        complete.append(self._join())
        self._start()
    return complete

  def _add(self, entry: memoryview) -> bool:
    """Returns whether the entry is the last of its sample."""
    self._size += len(entry)
    last = False
    for number, value, content in wire.fields(entry):
      if number == _Entry.DATA_FIELD_NUMBER:
        key, tensors = _parse_chunk(content)
        self._chunks[key] = tensors
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
    return DrawnItem(
      key=info.item.key,
      probability=info.probability,
      table_size=info.table_size,
      priority=info.item.priority,
      times_sampled=info.item.times_sampled,
      columns=columns,
      size=self._size,
    )


def _parse_chunk(message: memoryview) -> tuple[int, Sequence[codec.Tensor]]:
  key = 0
  tensors: list[codec.Tensor] = []
  for number, value, content in wire.fields(message):
    if number == _ChunkData.CHUNK_KEY_FIELD_NUMBER:
      key = value
    elif number == _ChunkData.DELTA_ENCODED_FIELD_NUMBER and value:
      raise ValueError(
        'A sample is delta encoded: another program wrote it; give this run '
        'tables of its own.'
      )
    elif number == _ChunkData.DATA_FIELD_NUMBER:
      # It contains nothing but tensors.
      tensors += [_parse_tensor(part) for _, _, part in wire.fields(content)]
  return key, tensors


def _parse_tensor(message: memoryview) -> codec.Tensor:
  code, compressed = 0, message[:0]
  shape: tuple[int, ...] = ()
  for number, value, content in wire.fields(message):
    if number == _Tensor.DTYPE_FIELD_NUMBER:
      code = value
    elif number == _Tensor.TENSOR_SHAPE_FIELD_NUMBER:
      parsed = reverb_pb2.TensorShape.FromString(bytes(content))
      shape = tuple([dim.size for dim in parsed.dim])
    elif number == _Tensor.TENSOR_CONTENT_FIELD_NUMBER:
      compressed = content
  return codec.Tensor(code, shape, compressed)
