"""Tensors against the same arrays of NumPy."""

import cramjam
import ml_dtypes
import numpy as np
import pytest

from seedrl_jax.replay.reverb.client import codec
from tests.replay.reverb import columns

_DTYPES = [
  *('float16', 'float32', 'float64', 'bool'),
  *('int8', 'int16', 'int32', 'int64', 'uint8', 'uint16', 'uint32', 'uint64'),
]
_SHAPES = [(1,), (4,), (3, 2), (2, 3, 4), (3, 0), (2, 0, 5)]


def _random(dtype, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
  """Returns arbitrary bits: also NaNs, infinities and extreme integers."""
  dtype = np.dtype(dtype)
  size = int(np.prod(shape)) * dtype.itemsize
  raw = np.random.default_rng(seed).integers(0, 256, size, np.uint8)
  if dtype.kind == 'b':
    raw %= 2
  return raw.view(dtype).reshape(shape)


def _encode(array: np.ndarray) -> codec.Tensor:
  (tensor,) = codec.encode([array])
  return tensor._replace(content=bytes(tensor.content))


def _assert_same_bits(actual: np.ndarray, expected: np.ndarray) -> None:
  assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
  assert actual.tobytes() == expected.tobytes()


@pytest.mark.parametrize('shape', _SHAPES)
@pytest.mark.parametrize('dtype', [*_DTYPES, ml_dtypes.bfloat16])
def test_round_trip(dtype, shape):
  array = _random(dtype, shape)
  tensor = _encode(array)
  assert tensor.shape == shape
  _assert_same_bits(columns.decode_tensor(tensor), array)


def test_content_is_raw_snappy_of_the_rows():
  array = np.arange(6, dtype=np.int32).reshape(3, 2)
  tensor = _encode(array)
  content = bytes(cramjam.snappy.decompress_raw(tensor.content))
  assert (tensor.code, content) == (3, array.tobytes())


@pytest.mark.parametrize(('offset', 'rows'), [(0, 5), (0, 2), (2, 3), (4, 1)])
def test_decode_into_strided_memory(offset, rows):
  array = _random(np.int16, (5, 3))
  batch = np.full((rows, 4, 3), 7, np.int16)
  tensor = _encode(array)
  codec.decode_into(tensor, batch[:, 1], offset)
  np.testing.assert_array_equal(batch[:, 1], array[offset : offset + rows])
  assert (batch[:, [0, 2, 3]] == 7).all()


def test_layouts_and_byte_orders_of_the_writer():
  array = np.arange(24, dtype=np.int32).reshape(4, 6)
  for other in (array.T[::2], array.astype('>i4'), np.asfortranarray(array)):
    decoded = columns.decode_tensor(_encode(other))
    np.testing.assert_array_equal(decoded, other)


@pytest.mark.parametrize('array', [np.array(['a']), np.array([object()])])
def test_what_is_no_number_is_refused(array):
  with pytest.raises(ValueError, match='Reverb cannot hold'):
    codec.encode([array])
  with pytest.raises(ValueError, match='TensorFlow type 7'):
    _ = codec.Tensor(7, (1,), b'').dtype


@pytest.mark.parametrize(
  'out',
  [
    np.empty((3, 2), np.float32),
    np.empty((3, 3), np.int32),
    np.empty((4, 2), np.int32),
  ],
)
def test_memory_that_does_not_fit_is_refused(out):
  tensor = _encode(np.zeros((3, 2), np.int32))
  with pytest.raises(ValueError, match='another kind'):
    codec.decode_into(tensor, out)


def test_damaged_tensors_are_refused():
  tensor = _encode(np.zeros((3, 2), np.int32))
  with pytest.raises(ValueError, match='damaged'):
    columns.decode_tensor(tensor._replace(content=b'\xff\xff'))
  other = _encode(np.zeros(5, np.int32))
  with pytest.raises(ValueError, match='20 bytes and not 24'):
    columns.decode_tensor(tensor._replace(content=other.content))


def test_columns_of_a_chunk_share_memory_but_not_bytes():
  arrays = [_random(np.int32, (4, 2), seed) for seed in range(3)]
  tensors = codec.encode(arrays)
  for tensor, column in zip(tensors, arrays, strict=True):
    _assert_same_bits(columns.decode_tensor(tensor), column)
