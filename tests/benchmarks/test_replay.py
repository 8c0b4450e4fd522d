"""Tests of the replay benchmark: both clients against a real server."""

import pytest

from seedrl_jax.benchmarks import replay, replay_clients, timing


@pytest.fixture(name='small')
def small_fixture(monkeypatch):
  monkeypatch.setattr(replay, '_STEPS', 2)
  monkeypatch.setattr(replay, '_BLOCKS', 2)
  monkeypatch.setattr(replay, '_SIZE', 8)


def test_every_combination_is_measured(small, server_python):
  rows = list(replay.measure(server_python, timing.Windows(2, 0.001), (1, 2)))
  combinations = [(r['data'], r['mode'], r['streams']) for r in rows]
  assert combinations == [
    (data, mode, streams)
    for data in replay.DATA
    for mode in replay.MODES
    for streams in (1, 2)
  ]
  for row in rows:
    for client in replay_clients.CLIENTS:
      figures = row[client]
      assert len(figures['rates']) == 2
      assert 0 < figures['minimum'] <= figures['median'] <= figures['maximum']
      # A Python with NumPy takes over 10 MB; the blocks far below 1 GB.
      assert 1e7 < figures['memory_peak'] < 2e9
    assert row['ratio'] > 0
    columns = replay.header()[-2].count('|')
    assert [line.count('|') for line in replay.lines(row)] == [columns] * 2


def test_client_that_ends_by_itself_is_quoted(tmp_path):
  log = tmp_path / 'log'
  client = replay._ClientProcess(['sh', '-c', 'read line; echo gone >&2'], log)
  with pytest.raises(RuntimeError, match='ended by itself: gone'):
    client.run('blocks.npz', 'both', 1, 1)
  client.close()
