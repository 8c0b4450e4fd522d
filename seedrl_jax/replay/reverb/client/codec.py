"""Tensors of Reverb's chunks.

Compression and decompression release the interpreter lock.
"""

import math
import threading

import cramjam
import numpy as np

from seedrl_jax.replay.reverb.proto import reverb_pb2

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


def _take(name: str, size: int) -> np.ndarray:
  """Returns `size` bytes, valid until this thread's next call for `name`."""
  memory = getattr(_scratch, name, None)
  if memory is None or memory.size < size:
    memory = np.empty(size, np.uint8)
    setattr(_scratch, name, memory)
  return memory[:size]


def encode(column: np.ndarray, tensor: reverb_pb2.Tensor) -> None:
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
