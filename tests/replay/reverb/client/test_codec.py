"""Tensors against the same arrays of NumPy, messages against protobuf."""

import cramjam
import ml_dtypes
import numpy as np
import pytest

from seedrl_jax.replay.reverb.client import codec
from seedrl_jax.replay.reverb.proto import reverb_pb2
from tests.replay.reverb import columns

_DTYPES = [
  *('float16', 'float32', 'float64', 'bool', ml_dtypes.bfloat16),
  *('int8', 'int16', 'int32', 'int64', 'uint8', 'uint16', 'uint32', 'uint64'),
]


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


@pytest.mark.parametrize('shape', [(1,), (3, 2), (2, 3, 4), (2, 0, 5)])
@pytest.mark.parametrize('dtype', _DTYPES)
def test_columns_of_a_chunk_come_back(dtype, shape):
  arrays = [_random(dtype, shape, seed) for seed in range(2)]
  for tensor, array in zip(codec.encode(arrays), arrays, strict=True):
    decoded = columns.decode_tensor(tensor)
    assert (decoded.dtype, decoded.shape) == (array.dtype, shape)
    assert decoded.tobytes() == array.tobytes()


def test_content_is_raw_snappy_of_the_rows():
  array = np.arange(6, dtype=np.int32).reshape(3, 2)
  for other in (array, np.asfortranarray(array), array.astype('>i4')):
    tensor = _encode(other)
    content = bytes(cramjam.snappy.decompress_raw(tensor.content))
    assert (tensor.code, content) == (3, array.tobytes())


@pytest.mark.parametrize(('offset', 'rows'), [(0, 5), (0, 2), (2, 3), (4, 1)])
def test_decode_into_strided_memory(offset, rows):
  array = _random(np.int16, (5, 3))
  batch = np.full((rows, 4, 3), 7, np.int16)
  codec.decode_into(_encode(array), batch[:, 1], offset)
  np.testing.assert_array_equal(batch[:, 1], array[offset : offset + rows])
  assert (batch[:, [0, 2, 3]] == 7).all()


def test_what_is_no_number_is_refused():
  with pytest.raises(ValueError, match='Reverb cannot hold'):
    codec.encode([np.array(['a'])])
  with pytest.raises(ValueError, match='TensorFlow type 7'):
    _ = codec.Tensor(7, (1,), b'').dtype


def test_tensors_that_do_not_fit_or_are_damaged_are_refused():
  tensor = _encode(np.zeros((3, 2), np.int32))
  for out in np.empty((3, 2), np.float32), np.empty((4, 2), np.int32):
    with pytest.raises(ValueError, match='another kind'):
      codec.decode_into(tensor, out)
  with pytest.raises(ValueError, match='damaged'):
    columns.decode_tensor(tensor._replace(content=b'\xff\xff'))
  other = _encode(np.zeros(5, np.int32))
  with pytest.raises(ValueError, match='20 bytes and not 24'):
    columns.decode_tensor(tensor._replace(content=other.content))


@pytest.mark.parametrize('value', [0, 127, 128, 2**64 - 1])
def test_numbers(value):
  message = reverb_pb2.ChunkData(chunk_key=value).SerializeToString()
  assert codec.varint(value) == (message[1:] if value else b'\x00')
  read = list(codec.fields(memoryview(message)))
  assert read == ([(1, value, b'')] if value else [])


def test_all_kinds_of_fields():
  info = reverb_pb2.SampleInfo(probability=0.5, table_size=300)
  info.item.table = 't'
  # A field kind that only other versions could have.
  message = info.SerializeToString() + b'\x7d\x01\x02\x03\x04'
  read = {n: (v, bytes(c)) for n, v, c in codec.fields(memoryview(message))}
  assert read == {
    1: (0, info.item.SerializeToString()),
    2: (0, b'\x00\x00\x00\x00\x00\x00\xe0\x3f'),
    3: (300, b''),
    15: (0, b'\x01\x02\x03\x04'),
  }


@pytest.mark.parametrize('message', [b'\x08\x80', b'\x0a\x05ab', b'\x80'])
def test_messages_that_were_cut_off(message):
  with pytest.raises(ValueError, match='cut off'):
    list(codec.fields(memoryview(message)))
