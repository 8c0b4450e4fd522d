"""Tests of the benchmark under R2D2's load, on a real server."""

import dataclasses
import types as python_types

import numpy as np
import pytest

from seedrl_jax.benchmarks import replay_sequences, timing
from seedrl_jax.replay import blocks

_LOAD = replay_sequences.Load(
  sequences=64,
  steps=20,
  overlap=10,
  width=4,
  batch_size=8,
  core_size=2,
)
_SMALL = dataclasses.replace(
  _LOAD, sequences=4, steps=5, overlap=2, width=2, batch_size=3
)


def test_overlaps_stored_once_take_less(monkeypatch, server_python):
  monkeypatch.setattr(replay_sequences, '_PERIOD', 50)
  once, twice = replay_sequences.measure(
    server_python, _LOAD, timing.Windows(2, 0.001)
  )
  head = replay_sequences.header(_LOAD)
  for row in (once, twice):
    assert row['insert']['median'] > 0 and row['sample']['median'] > 0
    assert row['both']['insert'] > 0 and row['both']['sample']['median'] > 0
    assert row['both']['update_seconds'] > 0
    assert row['restored'] == _LOAD.sequences
    (line,) = replay_sequences.lines(row)
    assert line.count('|') == head[-1].count('|') == head[-2].count('|')
    assert 64 * 20 * 84 * 84 < row['raw_bytes'] < 64 * 20 * 84 * 85
  # Ten of a sequence's twenty steps are new; the rest is small.
  share = once['checkpoint_bytes'] / twice['checkpoint_bytes']
  assert 0.4 < share < 0.75


def test_server_that_takes_nothing_is_not_waited_for_in_vain(monkeypatch):
  monkeypatch.setattr(replay_sequences, '_PATIENCE', 0.0)
  stats = python_types.SimpleNamespace(completed=3)
  table = python_types.SimpleNamespace(
    rate_limiter_info=python_types.SimpleNamespace(insert_stats=stats)
  )
  link = python_types.SimpleNamespace(peek=lambda: {'replay': table})
  made = python_types.SimpleNamespace(
    location=python_types.SimpleNamespace(link=link)
  )
  replay_sequences._wait_until_stored(made, 3)
  with pytest.raises(TimeoutError, match='took no 4 sequences'):
    replay_sequences._wait_until_stored(made, 4)


def test_consecutive_sequences_overlap(monkeypatch):
  monkeypatch.setattr(replay_sequences, '_PERIOD', 7)
  source = replay_sequences.Source(_SMALL)
  layout = blocks.UnrollLayout(_SMALL.spec())
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
  # Steps 3 to 7, of which the last equals the first.
  values = [block.unroll.steps.agent_output[1] for block in (first, second)]
  np.testing.assert_array_equal(values[1][4], values[0][0])
  assert (values[1][2] != values[0][4]).any()
