"""Tests of the code that the replay benchmark's clients share."""

import io
import json
import threading

import numpy as np
import pytest

from seedrl_jax.benchmarks import replay_clients


class _Client:
  """Records its calls."""

  def __init__(self):
    self.inserted: list[tuple[str, int]] = []
    self.sampled: list[tuple[str, int, int]] = []
    self.lock = threading.Lock()

  def insert(self, table, blocks):
    with self.lock:
      self.inserted.append((table, len(blocks)))

  def sample(self, table, count, streams, like):
    self.sampled.append((table, count, streams))


class _Failing(_Client):
  """Fails to insert, and samples until the test ends."""

  def __init__(self):
    super().__init__()
    self.may_end = threading.Event()

  def insert(self, table, blocks):
    raise OSError('no server')

  def sample(self, table, count, streams, like):
    self.may_end.wait()


_BLOCKS = [[np.full(3, i)] for i in range(2)]


@pytest.mark.parametrize(
  ('mode', 'inserted', 'sampled'),
  [
    ('fill', [('kept', 3)] * 2, []),
    ('insert', [('dropping', 3)] * 2, []),
    ('sample', [], [('kept', 6, 2)]),
    ('both', [('queue', 3)] * 2, [('queue', 6, 2)]),
  ],
)
def test_work_is_shared_by_the_streams(mode, inserted, sampled):
  client = _Client()
  figures = replay_clients.run(client, _BLOCKS, mode, streams=2, count=6)
  assert (client.inserted, client.sampled) == (inserted, sampled)
  assert figures['seconds'] > 0
  assert figures['memory_peak'] > 0


def test_failure_does_not_wait_for_the_others():
  client = _Failing()
  with pytest.raises(OSError, match='no server'):
    replay_clients.run(client, _BLOCKS, 'both', streams=1, count=2)
  client.may_end.set()


def test_commands_are_answered_line_by_line(tmp_path, monkeypatch, capsys):
  path = str(tmp_path / 'blocks.npz')
  np.savez(path, b=np.arange(6).reshape(2, 3), a=np.zeros((2, 1)))
  command = {'data': path, 'mode': 'fill', 'streams': 1, 'count': 4}
  lines = f'{json.dumps(command)}\n' * 2
  monkeypatch.setattr('sys.stdin', io.StringIO(lines))
  replay_clients.serve(_Client())
  answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
  assert [set(a) for a in answers] == [
    {'seconds', 'cpu_seconds', 'memory_peak'}
  ] * 2
  blocks = replay_clients.load(path)
  assert [array.shape for array in blocks[1]] == [(1,), (3,)]
