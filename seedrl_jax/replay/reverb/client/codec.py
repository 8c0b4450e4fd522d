"""Tensors of Reverb's chunks, and protocol buffers that carry them, by hand.

Compression and decompression release the interpreter lock. Protobuf copies a
field of bytes at every step; here it is copied once to make a message, and
never to parse one. Results can be concatenated with messages of the generated
code, as the order of fields is free.

Encoding: https://protobuf.dev/programming-guides/encoding/
"""

import functools
import math
import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import cramjam
import numpy as np

from seedrl_jax.replay.reverb.streams import Buffer

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
_NAMES = dict(zip(_CODES.values(), _CODES, strict=True))

_snappy = cramjam.snappy

# Each thread's own memory for data that cannot be written in place.
_scratch = threading.local()


def _take(name: str, size: int) -> np.ndarray:
  """Returns `size` bytes, valid until this thread's next call for `name`."""
  memory = getattr(_scratch, name, None)
  if memory is None or memory.size < size:
    memory = np.empty(size, np.uint8)
    setattr(_scratch, name, memory)
  return memory[:size]


class Tensor(NamedTuple):
  """A chunk's column: tensorflow.DataType, `[rows, ...]`, raw snappy."""

  code: int
  shape: tuple[int, ...]
  content: Buffer

  @property
  def dtype(self) -> np.dtype:
    """The element type; raises ValueError if it is not numeric."""
    return _dtype(self.code)


@functools.cache
def _dtype(code: int) -> np.dtype:
  if code not in _NAMES:
    raise ValueError(
      f'A tensor is of TensorFlow type {code}; only numbers can be read.'
    )
  if _NAMES[code] == 'bfloat16':
    # NumPy has no such type; the package comes with JAX.
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)
  return np.dtype(_NAMES[code])


def encode(columns: Sequence[np.ndarray]) -> list[Tensor]:
  """Compresses columns `[rows, ...]`; ValueError if Reverb cannot hold a type.

  This thread's next call overwrites the tensors' content.
  """
  raws = [_raw(column) for column in columns]
  rooms = [_snappy.compress_raw_max_len(raw) for raw in raws]
  memory, start = _take('encoded', sum(rooms)).data, 0
  tensors = []
  for column, raw, room in zip(columns, raws, rooms, strict=True):
    size = _snappy.compress_raw_into(raw, memory[start : start + room])
    content = memory[start : start + size]
    tensors.append(Tensor(_CODES[column.dtype.name], column.shape, content))
    start += size
  return tensors


def _raw(array: np.ndarray) -> memoryview:
  if array.dtype.name not in _CODES:
    raise ValueError(f'Reverb cannot hold arrays of type {array.dtype}.')
  if not array.dtype.isnative:
    array = array.astype(array.dtype.newbyteorder('='))
  return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def decode_into(tensor: Tensor, out: np.ndarray, offset: int = 0) -> None:
  """Decompresses rows `offset` to `offset + n` to `out`, `[n, ...]`.

  `out` may have any strides; if it is contiguous and all rows are wanted, they
  are decompressed in place.

  Raises ValueError if shape or type do not fit, or the bytes are damaged.
  """
  shape, dtype = tensor.shape, tensor.dtype
  end = offset + out.shape[0]
  if out.dtype != dtype or out.shape[1:] != shape[1:] or end > shape[0]:
    raise ValueError(
      f'A tensor of {dtype}{list(shape)} from row {offset} on was to fill '
      f'{out.dtype}{list(out.shape)}; the unrolls in the table are of another '
      'kind.'
    )
  if out.shape[0] == shape[0] and out.flags.c_contiguous:
    _decompress(tensor, out.reshape(-1).view(np.uint8))
    return
  raw = _take('decoded', math.prod(shape) * dtype.itemsize)
  _decompress(tensor, raw)
  out[...] = raw.view(dtype).reshape(shape)[offset:end]


def _decompress(tensor: Tensor, raw: np.ndarray) -> None:
  content = tensor.content
  try:
    size = _snappy.decompress_raw_len(content)
    if size == raw.size:
      # Snappy refuses an empty destination.
      if size:
        _snappy.decompress_raw_into(content, raw.data)
      return
  except cramjam.DecompressionError as e:
    raise ValueError(f'A tensor is damaged: {e}') from e
  raise ValueError(f'A tensor has {size} bytes and not {raw.size}.')


_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def varint(value: int) -> bytes:
  """Returns a number that is not negative as a varint."""
  out = bytearray()
  while value > 0x7F:
    out.append(value & 0x7F | 0x80)
    value >>= 7
  out.append(value)
  return bytes(out)


def field(number: int, parts: Sequence[Buffer]) -> list[Buffer]:
  """Returns the parts of a field of bytes, or of a message."""
  size = sum(len(part) for part in parts)
  return [varint(number << 3 | _BYTES) + varint(size), *parts]


def fields(message: memoryview) -> Iterator[tuple[int, int, memoryview]]:
  """Yields (number, value, content) of each field, without copying.

  An integer of variable length has a value, any other field has content.

  Raises ValueError if the message is damaged.
  """
  position, end = 0, len(message)
  nothing = message[:0]
  try:
    while position < end:
      key, position = _read_varint(message, position)
      kind = key & 7
      if kind == _VARINT:
        value, position = _read_varint(message, position)
        yield key >> 3, value, nothing
        continue
      if kind == _BYTES:
        size, position = _read_varint(message, position)
      elif kind in (_FIXED64, _FIXED32):
        size = 8 if kind == _FIXED64 else 4
      else:
        raise ValueError(f'A message has a field of kind {kind}.')
      start, position = position, position + size
      if position > end:
        raise IndexError
      yield key >> 3, 0, message[start:position]
  except IndexError:
    raise ValueError('A message was cut off.') from None


def _read_varint(message: memoryview, position: int) -> tuple[int, int]:
  """Returns the number at `position` and the position after it."""
  byte = message[position]
  # One byte is enough for nearly all numbers.
  if byte < 0x80:
    return byte, position + 1
  value, shift = byte & 0x7F, 7
  while True:
    position += 1
    byte = message[position]
    value |= (byte & 0x7F) << shift
    if byte < 0x80:
      return value, position + 1
    shift += 7
