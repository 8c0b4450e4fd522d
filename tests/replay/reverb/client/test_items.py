"""Chunks and items as messages."""

import numpy as np
import pytest

from seedrl_jax.replay.reverb.client import codec, errors, items
from seedrl_jax.replay.reverb.proto import reverb_pb2
from tests.replay.reverb import columns as decoding


def _parse(*wires: bytes) -> reverb_pb2.InsertStreamRequest:
  return reverb_pb2.InsertStreamRequest.FromString(b''.join(wires))


def _tensor(message: reverb_pb2.Tensor) -> codec.Tensor:
  shape = tuple(dim.size for dim in message.tensor_shape.dim)
  return codec.Tensor(message.dtype, shape, message.tensor_content)


def test_chunk_holds_its_columns():
  columns = [np.arange(6, dtype=np.int32).reshape(3, 2), np.zeros(3, bool)]
  chunk = items.encode_chunk(columns)
  (data,) = _parse(chunk.wire).chunks
  assert (data.chunk_key, chunk.rows) == (chunk.key, 3)
  assert (data.sequence_range.start, data.sequence_range.end) == (0, 2)
  assert data.data_tensors_len == 2
  assert data.data_uncompressed_size == 24 + 3
  for tensor, column in zip(data.data.tensors, columns, strict=True):
    np.testing.assert_array_equal(
      decoding.decode_tensor(_tensor(tensor)), column
    )


@pytest.mark.parametrize(
  'columns',
  [
    [],
    [np.zeros(2), np.zeros(3)],
    [np.zeros((0, 2))],
    [np.zeros(2), np.zeros(())],
  ],
)
def test_columns_of_unequal_rows_are_refused(columns):
  with pytest.raises(ValueError, match='same rows'):
    items.encode_chunk(columns)


def test_chunk_that_no_message_can_carry_is_refused(monkeypatch):
  monkeypatch.setattr(errors, 'MAX_MESSAGE_BYTES', 100)
  noise = np.random.default_rng(0).integers(0, 256, (1, 200), np.uint8)
  with pytest.raises(ValueError, match='fewer unrolls'):
    items.encode_chunk([noise])


def test_item_refers_to_its_chunks():
  first = items.encode_chunk([np.zeros((3, 2)), np.zeros(3)])
  second = items.encode_chunk([np.ones((4, 2)), np.ones(4)])
  columns = [
    items.ItemColumn([
      items.Slice(first, 0, 1, 2),
      items.Slice(second, 0, 0, 4),
    ]),
    items.ItemColumn([items.Slice(second, 1, 3, 1)], squeeze=True),
  ]
  item = items.make_item('t', 0.5, columns)
  assert item.chunks == (first, second)
  request = _parse(first.wire, item.wire, second.wire)
  assert [c.chunk_key for c in request.chunks] == [first.key, second.key]
  (parsed,) = request.items
  assert (parsed.key, parsed.table, parsed.priority) == (item.key, 't', 0.5)
  slices = [
    [(s.chunk_key, s.index, s.offset, s.length) for s in column.chunk_slices]
    for column in parsed.flat_trajectory.columns
  ]
  assert slices == [
    [(first.key, 0, 1, 2), (second.key, 0, 0, 4)],
    [(second.key, 1, 3, 1)],
  ]
  assert [c.squeeze for c in parsed.flat_trajectory.columns] == [False, True]


@pytest.mark.parametrize(('offset', 'length'), [(-1, 1), (0, 0), (2, 2)])
def test_slices_outside_their_chunk_are_refused(offset, length):
  chunk = items.encode_chunk([np.zeros(3)])
  column = items.ItemColumn([items.Slice(chunk, 0, offset, length)])
  with pytest.raises(ValueError, match='not all in a chunk of 3'):
    items.make_item('t', 1.0, [column])


def test_keys_are_never_zero(monkeypatch):
  draws = iter([0, 0, 7])
  monkeypatch.setattr(items.secrets, 'randbits', lambda bits: next(draws))
  assert items.random_key() == 7
