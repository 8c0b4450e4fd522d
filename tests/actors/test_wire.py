"""Tests for seedrl_jax/actors/wire.py."""

import chex
import numpy as np
import pytest

from seedrl_jax.actors import wire
from seedrl_jax.runtime import nest
from tests.actors import toys


def test_steps_come_out_as_they_went_in():
  message = toys.steps([7, 3], toys.MID, 5, ended=(3,))
  parsed = wire.parse(message)
  assert (parsed.rows, parsed.episodes) == (2, 1)
  got, episodes = toys.CODEC.unpack_steps(parsed)
  sent = toys.output([7, 3], toys.MID, 5)
  leaves = [*nest.flatten(sent.observation), *sent[1:-1]]
  chex.assert_trees_all_equal(got, leaves)
  assert [x.dtype for x in got] == [x.dtype for x in leaves]
  assert (episodes == toys.episodes(3)).all()
  whole = toys.steps([7, 3], toys.LAST, ended=(0, 1))
  assert len(message) < len(whole) == toys.CODEC.num_bytes(2)


def test_actions_for_others_are_refused():
  message = wire.parse(toys.CODEC.pack_actions(np.array([4, 0, 2])))
  assert toys.CODEC.unpack_actions(message, 3).tolist() == [4, 0, 2]
  with pytest.raises(wire.WireError, match='Actions for 3 environments'):
    toys.CODEC.unpack_actions(message, 2)


_GOOD = toys.steps([0, 1], toys.FIRST)


@pytest.mark.parametrize(
  'message, sentence',
  [
    (_GOOD[:15], 'A message of 15 bytes has no whole header'),
    (b'X' + _GOOD[1:], 'not of the protocol'),
    (_GOOD[:4] + b'\x01' + _GOOD[5:], 'of version 1 .* speaks version 7'),
  ],
)
def test_parse_refuses(message: bytes, sentence: str):
  with pytest.raises(wire.WireError, match=sentence):
    wire.parse(message)


@pytest.mark.parametrize(
  'message, sentence',
  [
    (_GOOD + b'?', '1 bytes too many'),
    (_GOOD[:-1], 'fewer bytes'),
    (_GOOD[:8] + b'\xff\xff\xff\xff' + _GOOD[12:], 'fewer bytes'),
    (_GOOD[:12] + b'\xff\xff\xff\xff' + _GOOD[16:], 'fewer bytes'),
  ],
)
def test_unpack_refuses(message: bytes, sentence: str):
  with pytest.raises(wire.WireError, match=sentence):
    toys.unpack(message)


@pytest.mark.parametrize(
  'body', [b'', b'[1]', b'{', b'\xff', b'[' * 50_000, b'1' * (1 << 17)]
)
def test_json_that_is_none_is_refused(body: bytes):
  message = wire.parse(wire.pack_json({})[:16] + body)
  with pytest.raises(wire.WireError, match='JSON'):
    wire.unpack_json(message)


def test_what_json_cannot_hold_is_not_sent():
  with pytest.raises(ValueError, match='settings cannot be sent'):
    wire.pack_json({'x': object()})
  with pytest.raises(ValueError, match='too many'):
    wire.pack_json({'x': 'y' * wire.MAX_JSON_BYTES})
