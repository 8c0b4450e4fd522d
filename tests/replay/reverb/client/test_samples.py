"""Samples assembled from entries."""

import numpy as np
import pytest

from seedrl_jax.replay.reverb.client import items, samples
from seedrl_jax.replay.reverb.proto import reverb_pb2
from tests.replay.reverb import columns as decoding

_Response = reverb_pb2.SampleStreamResponse


def _data(chunk: items.Chunk) -> reverb_pb2.ChunkData:
  return reverb_pb2.InsertStreamRequest.FromString(chunk.wire).chunks[0]


def _info(item: items.Item, **fields) -> reverb_pb2.SampleInfo:
  parsed = reverb_pb2.InsertStreamRequest.FromString(item.wire).items[0]
  return reverb_pb2.SampleInfo(item=parsed, **fields)


def _chunk(start: int) -> items.Chunk:
  rows = np.arange(start, start + 6, dtype=np.int32).reshape(3, 2)
  return items.encode_chunk([rows, rows[:, 0].astype(np.float32)])


def _message(*entries) -> bytes:
  return _Response(entries=entries).SerializeToString()


def _entry(chunks, end: bool, info=None):
  data = [_data(chunk) for chunk in chunks]
  return _Response.SampleEntry(info=info, data=data, end_of_sequence=end)


def _column(*parts, squeeze: bool = False) -> items.ItemColumn:
  return items.ItemColumn([items.Slice(*part) for part in parts], squeeze)


def test_sample_over_several_entries_and_messages():
  first, second = _chunk(0), _chunk(10)
  columns = [
    _column((first, 0, 1, 2), (second, 0, 0, 1)),
    _column((second, 1, 2, 1), squeeze=True),
  ]
  item = items.make_item('t', 0.5, columns)
  info = _info(item, probability=0.25, table_size=9)
  joiner = samples.Joiner()
  assert joiner.add(_message(_entry([first], False, info))) == []
  assert joiner.add(b'') == []
  (sample,) = joiner.add(_message(_entry([second], True)))
  assert (sample.key, sample.priority) == (item.key, 0.5)
  assert (sample.probability, sample.table_size) == (0.25, 9)
  rows, scalar = sample.columns
  decoded = decoding.decode_column(rows)
  np.testing.assert_array_equal(decoded, [[2, 3], [4, 5], [10, 11]])
  assert decoding.decode_column(scalar) == 14


def test_several_samples_in_a_message():
  chunk = _chunk(0)
  made = [
    items.make_item('t', 1.0, [_column((chunk, 0, i, 1))]) for i in range(3)
  ]
  message = _message(*(_entry([chunk], True, _info(item)) for item in made))
  complete = samples.Joiner().add(message)
  assert [sample.key for sample in complete] == [item.key for item in made]
  # But for about two bytes that announce each entry.
  assert 0 <= len(message) - sum(s.size for s in complete) < 20


def test_delta_encoded_chunk_is_refused():
  chunk = _chunk(0)
  item = items.make_item('t', 1.0, [_column((chunk, 0, 0, 1))])
  entry = _entry([chunk], True, _info(item))
  entry.data[0].delta_encoded = True
  with pytest.raises(ValueError, match='delta encoded'):
    samples.Joiner().add(_message(entry))
