"""Tests of the replay benchmarks: against real servers, and the clients."""

import io
import json
import threading

import numpy as np
import pytest

from seedrl_jax.configs import benchmark
from seedrl_jax.lab.benchmarks import replay, replay_clients, timing

_WINDOWS = timing.Windows(2, 0.001)


def test_every_combination_is_measured(monkeypatch, server_python):
  for name, value in {
    '_STEPS': 2,
    '_BLOCKS': 2,
    '_SIZE': 8,
    '_SKIPPED': 3,
    'STREAMS': (1, 2),
  }.items():
    monkeypatch.setattr(replay, name, value)
  rows = list(replay.measure(server_python, _WINDOWS))
  assert [(r['data'], r['mode'], r['streams']) for r in rows] == [
    (data, mode, streams)
    for data in replay.DATA
    for mode in replay.MODES
    for streams in ('1', '2')
  ]
  for row in rows:
    assert '–' in row['ours, MB/s'] and '–' in row['official, MB/s']
    assert float(row['ours / official']) > 0


@pytest.mark.usefixtures('server_python')
def test_sequences_are_inserted_and_drawn(monkeypatch):
  monkeypatch.setattr(replay, '_PERIOD', 50)
  config = benchmark.get_r2d2_load()
  config.env.num_envs = config.env.batch_size = config.batch_size = 4
  config.unroll_length = config.burn_in = 10
  config.topology.max_devices = 1
  config.replay.max_size, config.network.lstm_size = 64, 2
  config.network.head_hidden_size = 2
  (row,) = replay.measure_sequences(config, _WINDOWS)
  assert all('(0' not in cell and cell != '0' for cell in row.values()), row


def test_client_that_ends_by_itself_is_quoted(tmp_path):
  command = ['sh', '-c', 'read line; echo gone >&2']
  with (
    replay.ClientProcess(command, tmp_path / 'log') as client,
    pytest.raises(RuntimeError, match='ended by itself: gone'),
  ):
    client.run('blocks.npz', 'both', 1, 1)


class _Client:
  """Records its calls."""

  def __init__(self):
    self.inserted: list[tuple[str, int]] = []
    self.sampled: list[tuple[str, int, int]] = []

  def insert(self, table, blocks):
    self.inserted.append((table, len(blocks)))

  def sample(self, table, count, streams, like):
    self.sampled.append((table, count, streams))


@pytest.mark.parametrize(
  ('mode', 'inserted', 'sampled'),
  [
    ('insert', [('dropping', 3)] * 2, []),
    ('sample', [], [('kept', 6, 2)]),
    ('both', [('queue', 3)] * 2, [('queue', 6, 2)]),
  ],
)
def test_work_is_shared_by_the_streams(mode, inserted, sampled):
  client = _Client()
  blocks = [[np.full(3, i)] for i in range(2)]
  assert replay_clients.run(client, blocks, mode, streams=2, count=6) > 0
  assert (client.inserted, client.sampled) == (inserted, sampled)


def test_failure_does_not_wait_for_the_others():
  may_end = threading.Event()

  class Failing(_Client):
    def insert(self, table, blocks):
      raise OSError('no server')

    def sample(self, table, count, streams, like):
      may_end.wait()

  with pytest.raises(OSError, match='no server'):
    replay_clients.run(Failing(), [[]], 'both', streams=1, count=2)
  may_end.set()


def test_commands_are_answered_line_by_line(tmp_path, monkeypatch, capsys):
  path = str(tmp_path / 'blocks.npz')
  np.savez(path, b=np.arange(6).reshape(2, 3), a=np.zeros((2, 1)))
  command = {'data': path, 'mode': 'fill', 'streams': 1, 'count': 4}
  lines = f'{json.dumps(command)}\n' * 2
  monkeypatch.setattr('sys.stdin', io.StringIO(lines))
  replay_clients.serve(_Client())
  answers = [float(line) for line in capsys.readouterr().out.splitlines()]
  assert len(answers) == 2 and min(answers) > 0
  blocks = replay_clients.load(path)
  assert [array.shape for array in blocks[1]] == [(1,), (3,)]
