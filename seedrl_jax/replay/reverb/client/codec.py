"""Tensors of Reverb's chunks.

Compression and decompression release the interpreter lock.
"""

import functools
import math
import threading
from typing import NamedTuple

import cramjam
import numpy as np

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
  content: bytes

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


def encode(column: np.ndarray) -> Tensor:
  """Compresses `[rows, ...]`; raises ValueError if Reverb lacks its type."""
  name = column.dtype.name
  if name not in _CODES:
    raise ValueError(f'Reverb cannot hold arrays of type {column.dtype}.')
  if not column.dtype.isnative:
    column = column.astype(column.dtype.newbyteorder('='))
  raw = np.ascontiguousarray(column).reshape(-1).view(np.uint8).data
  memory = _take('encoded', _snappy.compress_raw_max_len(raw)).data
  size = _snappy.compress_raw_into(raw, memory)
  return Tensor(_CODES[name], column.shape, bytes(memory[:size]))


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
  is_whole = out.shape[0] == shape[0] and out.flags.c_contiguous
  if is_whole:
    raw = out.reshape(-1).view(np.uint8)
  else:
    raw = _take('decoded', math.prod(shape) * dtype.itemsize)
  try:
    size = _snappy.decompress_raw_len(tensor.content)
    if size != raw.size:
      raise ValueError(f'A tensor has {size} bytes and not {raw.size}.')
    # Snappy refuses an empty destination.
    if size:
      _snappy.decompress_raw_into(tensor.content, raw.data)
  except cramjam.DecompressionError as e:
    raise ValueError(f'A tensor is damaged: {e}') from e
  if not is_whole:
    out[...] = raw.view(dtype).reshape(shape)[offset:end]
