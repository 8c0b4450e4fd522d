"""Tests of the store's benchmark under R2D2's load, on a real server."""

import types as python_types

import pytest

from seedrl_jax.benchmarks import replay_sequences, sequences

_LOAD = sequences.Load(
  sequences=64,
  steps=20,
  overlap=10,
  width=4,
  batch_size=8,
  core_size=2,
)


def test_overlaps_stored_once_take_less(monkeypatch, server_python):
  monkeypatch.setattr(sequences, '_PERIOD', 50)
  once, twice = replay_sequences.measure(server_python, _LOAD, 2, 0.001)
  head = replay_sequences.header(_LOAD)
  for row in (once, twice):
    assert row['insert']['median'] > 0 and row['sample']['median'] > 0
    assert row['both']['insert'] > 0 and row['both']['sample']['median'] > 0
    assert row['both']['update_seconds'] > 0
    assert row['restored'] == _LOAD.sequences
    (line,) = replay_sequences.lines(row)
    assert line.count('|') == head[-1].count('|') == head[-2].count('|')
    assert 64 * 20 * 84 * 84 < row['raw_bytes'] < 64 * 20 * 84 * 85
  # A sequence has ten new steps of its twenty; little else is in there.
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
    host=python_types.SimpleNamespace(link=link)
  )
  replay_sequences._wait_until_stored(made, 3)
  with pytest.raises(TimeoutError, match='took no 4 sequences'):
    replay_sequences._wait_until_stored(made, 4)
