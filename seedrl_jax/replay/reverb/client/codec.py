"""Conversion between NumPy arrays and the tensors of Reverb's chunks.

Compression and decompression release the interpreter lock.
"""

import functools
import math
import threading
from collections.abc import Sequence
from typing import NamedTuple

import cramjam
import numpy as np

from seedrl_jax.replay.reverb.client import wire

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
_NAMES = {code: name for name, code in _CODES.items()}

_snappy = cramjam.snappy


class _Scratch(threading.local):
  """Each thread's own memory for data that cannot be written in place."""

  def __init__(self) -> None:
    self._memory = np.empty(0, np.uint8)

  def take(self, size: int) -> np.ndarray:
    """Returns `size` bytes, valid until this thread's next call."""
    if self._memory.size < size:
      self._memory = np.empty(size, np.uint8)
    return self._memory[:size]


_encoded, _decoded = _Scratch(), _Scratch()


class Tensor(NamedTuple):
  """A chunk's column: tensorflow.DataType, `[rows, ...]`, raw snappy."""

  code: int
  shape: tuple[int, ...]
  content: wire.Buffer

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
  memory, start = _encoded.take(sum(rooms)).data, 0
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

  Raises:
    ValueError: if shape or type do not fit, or the bytes are damaged.
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
  raw = _decoded.take(math.prod(shape) * dtype.itemsize)
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
