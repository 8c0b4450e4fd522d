"""Tests of the sequences that the replay benchmark writes."""

import dataclasses

import numpy as np
import pytest

from seedrl_jax.benchmarks import pong_frames, sequences
from seedrl_jax.replay import blocks

_LOAD = sequences.Load(
  sequences=4, steps=5, overlap=2, width=2, batch_size=3, frame_size=8
)


def test_frames_are_of_a_game_that_goes_on():
  frames = pong_frames.make(np.random.default_rng(0), steps=3, width=2)
  assert frames.shape == (3, 2, 84, 84, 1) and frames.dtype == np.uint8
  assert (frames[0] != frames[1]).any()


def test_consecutive_sequences_overlap(monkeypatch):
  monkeypatch.setattr(sequences, '_PERIOD', 7)
  source = sequences.Source(_LOAD)
  layout = blocks.UnrollLayout(_LOAD.spec())
  first, second = layout.new_block(2), layout.new_block(2)
  for block in (first, second):
    assert source.fill(block).shape == (2,)
    assert block.unroll.env_id.tolist() == [0, 1]
    assert block.unroll.initial_core[1].std() > 0
  for before, after, major in zip(
    first.leaves, second.leaves, layout.time_major, strict=True
  ):
    if major:
      np.testing.assert_array_equal(after[:2], before[-2:])
  # Steps 3 to 7, of which the last is the first again.
  values = [block.unroll.steps.agent_output[1] for block in (first, second)]
  np.testing.assert_array_equal(values[1][4], values[0][0])
  assert (values[1][2] != values[0][4]).any()


@pytest.mark.parametrize(
  ('change', 'sentence'),
  [
    ({'overlap': 5}, '--overlap=5: give 2 to 4 steps'),
    ({'overlap': 1}, '--overlap=1: give 2 to 4 steps'),
    ({'sequences': 5}, '--sequences=5: give a multiple of 2'),
    ({'sequences': 2}, '--sequences=2: .* at least a batch, 3'),
    ({'frame_size': 85}, '--frame_size=85: give 1 to 84'),
  ],
)
def test_load_that_makes_no_sense_is_refused(change, sentence):
  with pytest.raises(ValueError, match=sentence):
    dataclasses.replace(_LOAD, **change)
