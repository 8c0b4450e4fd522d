"""Tests of messages by hand against protobuf's own code."""

import pytest

from seedrl_jax.replay.reverb.client import wire
from seedrl_jax.replay.reverb.proto import reverb_pb2


@pytest.mark.parametrize('value', [0, 1, 127, 128, 300, 2**32, 2**64 - 1])
def test_numbers(value):
  message = reverb_pb2.ChunkData(chunk_key=value).SerializeToString()
  expected = message[1:] if value else b'\x00'
  assert wire.varint(value) == expected
  read = list(wire.fields(memoryview(message)))
  assert read == ([(1, value, b'')] if value else [])


@pytest.mark.parametrize('size', [0, 5, 127, 128, 20000])
def test_bytes_in_parts(size):
  content = bytes(i % 251 for i in range(size))
  parts = [content[:3], memoryview(content[3:])]
  message = b''.join(wire.field(4, parts))
  parsed = reverb_pb2.Tensor.FromString(message)
  assert parsed == reverb_pb2.Tensor(tensor_content=content)
  assert list(wire.fields(memoryview(message))) == [(4, 0, content)]


def test_all_kinds_of_fields():
  info = reverb_pb2.SampleInfo(probability=0.5, table_size=300)
  info.item.table = 't'
  # A field kind that only other versions could have.
  message = info.SerializeToString() + b'\x7d\x01\x02\x03\x04'
  read = {n: (v, bytes(c)) for n, v, c in wire.fields(memoryview(message))}
  assert read == {
    1: (0, info.item.SerializeToString()),
    2: (0, b'\x00\x00\x00\x00\x00\x00\xe0\x3f'),
    3: (300, b''),
    15: (0, b'\x01\x02\x03\x04'),
  }


def test_nothing_is_copied():
  message = b''.join(wire.field(1, [b'abc']))
  ((_, _, content),) = wire.fields(memoryview(message))
  assert content.obj is message


@pytest.mark.parametrize(
  'message', [b'\x08', b'\x08\x80', b'\x0a\x05ab', b'\x80']
)
def test_messages_that_were_cut_off(message):
  with pytest.raises(ValueError, match='cut off'):
    list(wire.fields(memoryview(message)))


def test_what_is_no_message():
  with pytest.raises(ValueError, match='kind 3'):
    list(wire.fields(memoryview(b'\x0b')))
