"""Tensors, chunks and samples; interoperation tests their bytes."""

import numpy as np
import pytest

from seedrl_jax.replay.reverb.client import items
from seedrl_jax.replay.reverb.proto import reverb_pb2
from tests.replay.reverb import columns as decoding

_Response = reverb_pb2.SampleStreamResponse
_parse = reverb_pb2.InsertStreamRequest.FromString


def _chunk(start: int) -> items.Chunk:
  rows = np.arange(start, start + 6, dtype=np.int32).reshape(3, 2)
  return items.encode_chunk([rows, rows[:, 0].astype(np.float32)])


def _entry(chunks, end: bool, info=None):
  data = [_parse(chunk.wire).chunks[0] for chunk in chunks]
  return _Response.SampleEntry(info=info, data=data, end_of_sequence=end)


def _message(*entries) -> bytes:
  return _Response(entries=entries).SerializeToString()


def test_sample_over_several_entries_and_messages():
  first, second = _chunk(0), _chunk(10)
  columns = [
    items.ItemColumn([
      items.Slice(first, 0, 1, 2),
      items.Slice(second, 0, 0, 1),
    ]),
    items.ItemColumn([items.Slice(second, 1, 2, 1)], squeeze=True),
  ]
  item = items.make_item('t', 0.5, columns)
  assert item.chunks == (first, second)
  info = reverb_pb2.SampleInfo(
    item=_parse(item.wire).items[0], probability=0.25, table_size=9
  )
  joiner = items.Joiner()
  assert joiner.add(_message(_entry([first], False, info))) == []
  assert joiner.add(b'') == []
  last, whole = _entry([second], True), _entry([first, second], True, info)
  samples = joiner.add(_message(last, whole))
  assert len(samples) == 2
  for sample in samples:
    assert sample.info == info
    rows, scalar = decoding.decode_columns(sample)
    np.testing.assert_array_equal(rows, [[2, 3], [4, 5], [10, 11]])
    assert scalar == 14


def test_what_no_message_can_carry_is_refused(monkeypatch):
  monkeypatch.setattr(items, '_MAX_MESSAGE_BYTES', 10)
  with pytest.raises(ValueError, match='fewer unrolls'):
    _chunk(0)


def _tensor(array: np.ndarray) -> reverb_pb2.Tensor:
  tensor = reverb_pb2.Tensor()
  items.encode_tensor(array, tensor)
  return tensor


def test_what_is_no_number_is_refused():
  with pytest.raises(ValueError, match='Reverb cannot hold'):
    _tensor(np.array(['a']))


def test_tensors_that_do_not_fit_or_are_damaged_are_refused():
  tensor, out = _tensor(np.zeros((3, 2), np.int32)), np.empty((3, 2), np.int32)
  for other in np.empty((3, 2), np.float32), np.empty((4, 2), np.int32):
    with pytest.raises(ValueError, match='another kind'):
      items.decode_into(tensor, other)
  tensor.tensor_content = b'\xff\xff'
  with pytest.raises(ValueError, match='damaged'):
    items.decode_into(tensor, out)
  tensor.tensor_content = _tensor(np.zeros(5, np.int32)).tensor_content
  with pytest.raises(ValueError, match='20 bytes and not 24'):
    items.decode_into(tensor, out)
