"""Blocks as items and back, and the steps that unrolls share."""

from collections.abc import Iterable, Sequence, Set

import ml_dtypes
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.replay import base, blocks
from seedrl_jax.replay.reverb.client import items, unroll_items
from seedrl_jax.replay.reverb.proto import reverb_pb2

_Response = reverb_pb2.SampleStreamResponse


def _layout(rows: int, overlap: int = 1) -> blocks.UnrollLayout:
  def spec(dtype, *shape: int) -> types.ArraySpec:
    return types.ArraySpec((rows, *shape), np.dtype(dtype))

  return blocks.UnrollLayout(
    types.Unroll(
      steps=types.Steps(
        observation={
          'image': spec(np.uint8, 2, 2),
          'half': spec(ml_dtypes.bfloat16, 3),
          'nothing': spec(np.float64, 0),
        },
        reward=spec(np.float32),
        discount=spec(np.float16),
        step_type=spec(np.uint8),
        previous_action=spec(np.int64),
        agent_output=(spec(bool), None),
        parameter_version=spec(np.int32),
      ),
      initial_core=[types.ArraySpec((4,), np.dtype(np.float32))],
      env_id=types.ArraySpec((), np.dtype(np.int32)),
    ),
    overlap,
  )


class _Experience:
  """Endless steps of environments, cut into unrolls."""

  def __init__(self, layout: blocks.UnrollLayout, stride: int):
    self._layout = layout
    self._stride = stride
    self._rng = np.random.default_rng(1)
    self._last: dict[int, base.Block] = {}

  def forget(self, env_id: int) -> None:
    """Restarts an environment."""
    del self._last[env_id]

  def block(self, env_ids: Sequence[int]) -> base.Block:
    block = self._layout.new_block(len(env_ids))
    for leaf in block.leaves:
      leaf[...] = self._rng.integers(0, 200, leaf.shape).astype(leaf.dtype)
    block.unroll.env_id[:] = env_ids
    for column, env_id in enumerate(env_ids):
      self._continue(block, column, env_id)
    return block

  def _continue(self, block: base.Block, column: int, env_id: int) -> None:
    if before := self._last.get(env_id):
      for i, major in enumerate(self._layout.time_major):
        if major:
          old = before.leaves[i][self._stride :, 0]
          block.leaves[i][: len(old), column] = old
    kept = self._layout.new_block(1)
    for i, major in enumerate(self._layout.time_major):
      at = (slice(None), [column]) if major else [column]
      kept.leaves[i][...] = block.leaves[i][at]
    self._last[env_id] = kept


def _sampled(item: items.Item) -> items.DrawnItem:
  """Returns an item as a server would send it."""
  request = reverb_pb2.InsertStreamRequest.FromString
  entry = _Response.SampleEntry(
    info=reverb_pb2.SampleInfo(item=request(item.wire).items[0]),
    data=[request(chunk.wire).chunks[0] for chunk in item.chunks],
    end_of_sequence=True,
  )
  response = _Response(entries=[entry])
  (sample,) = items.Joiner().add(response.SerializeToString())
  return sample


def _assert_equal(got: base.Block, expected: base.Block) -> None:
  for one, other in zip(got.leaves, expected.leaves, strict=True):
    np.testing.assert_array_equal(one, other)


def _distinct(entries: Iterable[items.Item]) -> dict[int, items.Chunk]:
  return {chunk.key: chunk for item in entries for chunk in item.chunks}


def _decoded(
  layout: blocks.UnrollLayout, drawn: Sequence[items.DrawnItem]
) -> base.Block:
  codec = unroll_items.UnrollCodec(layout, 't', map)
  sample = codec.decode(blocks.BlockPool(layout, len(drawn)), print, drawn)
  (block,) = sample.blocks
  return block


class _Encoder:
  """An `UnrollCodec` that checks what it made."""

  def __init__(self, layout: blocks.UnrollLayout):
    self._layout = layout
    self._codec = unroll_items.UnrollCodec(layout, 't', map)
    self._kept: Set[int] = frozenset()
    self._sent: set[int] = set()

  def encode(self, block: base.Block) -> list[items.Item]:
    """Encodes; checks that old chunks were kept and unrolls come back."""
    width = block.width
    encoded = self._codec.encode(block, np.arange(width) / 2)
    new = _distinct(encoded.items).keys()
    assert new & self._sent <= self._kept
    self._sent |= new
    self._kept = encoded.keep
    drawn = [_sampled(item) for item in encoded.items]
    priorities = [sample.info.item.priority for sample in drawn]
    assert priorities == [i / 2 for i in range(width)]
    _assert_equal(_decoded(self._layout, drawn), block)
    return encoded.items


@pytest.mark.parametrize(('least', 'expected'), [(0, [1, 0]), (4096, [0, 0])])
def test_small_overlaps_and_new_environments_share_nothing(
  least, expected, monkeypatch
):
  monkeypatch.setattr(unroll_items, '_OVERLAP_BYTES', least)
  layout = _layout(6, overlap=2)
  experience, encoder = _Experience(layout, 4), _Encoder(layout)
  first = encoder.encode(experience.block([0, 1]))
  experience.forget(1)
  second = encoder.encode(experience.block([0, 1]))
  shared = [
    len(set(_distinct([a])) & set(_distinct([b])))
    for a, b in zip(first, second, strict=True)
  ]
  assert shared == expected


def test_unrolls_that_no_message_could_carry_are_cut(monkeypatch):
  layout = _layout(6, overlap=3)
  row_bytes = sum(
    leaf[0].nbytes
    for leaf, major in zip(
      layout.new_block(1).leaves, layout.time_major, strict=True
    )
    if major
  )
  monkeypatch.setattr(unroll_items, '_UNROLL_CHUNK_BYTES', 2 * row_bytes)
  monkeypatch.setattr(unroll_items, '_OVERLAP_BYTES', 0)
  experience, encoder = _Experience(layout, 3), _Encoder(layout)
  encoded = [encoder.encode(experience.block([0]))[0] for _ in range(3)]
  # Both halves of the first, three more steps for each other, and the rests.
  rows = [chunk.rows for chunk in _distinct(encoded).values()]
  assert rows == [2, 1, 2, 1, 1, 2, 1, 1, 2, 1, 1]


def test_items_of_another_configuration_are_told():
  layout, shorter = _layout(4), _layout(3)
  item = _Encoder(shorter).encode(_Experience(shorter, 3).block([0]))[0]
  with pytest.raises(ValueError, match='unroll_length'):
    _decoded(layout, [_sampled(item)])
  rows = items.encode_chunk([np.zeros((4, 1))])
  column = items.ItemColumn([items.Slice(rows, 0, 0, 4)])
  foreign = _sampled(items.make_item('t', 1.0, [column]))
  with pytest.raises(ValueError, match='columns'):
    _decoded(layout, [foreign])
