"""Tests of runs that learn from demonstrations."""

import contextlib

import numpy as np
import pytest

from seedrl_jax.demonstrations import folder as folder_lib
from seedrl_jax.demonstrations import mixing
from seedrl_jax.replay.reverb.client import server_rules
from tests import runs
from tests.demonstrations import recording_runs
from tests.replay.reverb import shared_servers

_SIZE = 'demonstrations/size_unrolls'
_SAMPLES = 'demonstrations/sampled_unrolls'


def _student(folder, **values):
  return recording_runs.student(**{
    'demonstrations__path': str(folder),
    'demonstrations__fraction': 0.25,
    'log__every_seconds': 0.05,
    **values,
  })


def _record(folder, **options) -> int:
  """Returns the number of recorded sequences."""
  config = recording_runs.student()
  options = {'episodes': 6, 'num_envs': 2, **options}
  return recording_runs.record(config, folder, **options).manifest.sequences


def _table(run: runs.Run):
  return run.system.parts.store.info()[folder_lib.TABLE]


def test_a_run_learns_from_both_tables_and_resumes_with_them(tmp_path, backend):
  count = _record(tmp_path / 'demos')
  values = {'replay__backend': backend}
  run = runs.Run(_student(tmp_path / 'demos', **values), tmp_path / 'run')
  assert f'Took {count} demonstrations' in run.output
  assert _table(run).size == count
  summary = run.train()
  assert summary['status'] == 'finished'
  # Of the run's own steps: demonstrations have no version.
  assert 0 <= summary['policy_lag_mean'] < summary['updates']
  last = runs.rows(tmp_path / 'run')[-1]
  assert last.keys() <= runs.documented_columns()
  assert float(last[_SIZE]) == count
  # One of four; the current batch may have only one table's part.
  share = float(last[_SAMPLES]) / float(last['replay/sampled_unrolls'])
  assert share == pytest.approx(1 / 3, rel=0.2)

  values['total_env_frames'] = 900
  more = tmp_path / 'more'
  assert _record(more, episodes=12) > count
  again = runs.Run(_student(more, **values), tmp_path / 'run')
  assert 'Took' not in again.output
  assert f'table of demonstrations holds {count} sequences' in again.output
  assert _table(again).size == count
  assert _table(again).samples > 0
  assert again.train()['status'] == 'finished'


@pytest.fixture(name='served')
def served_fixture(server_python):
  """Starts a server; yields a configuration for it."""
  with contextlib.ExitStack() as cleanup:
    factory = shared_servers.ServerFactory(server_python)
    cleanup.callback(factory.close)
    config = recording_runs.student(
      replay__backend='reverb',
      replay__address='localhost:1',
      demonstrations__fraction=0.25,
      demonstrations__max_size=100,
    )
    server = shared_servers.SharedServer(
      factory,
      [
        server_rules.server_rules(table, config.batch_size, config.batch_size)
        for table in mixing.run_tables(config)
      ],
    )
    server.start()
    cleanup.callback(server.close)
    config.replay.address = server.address
    yield config


def test_a_server_that_runs_is_filled(served, tmp_path):
  out = tmp_path / 'out'
  recording = recording_runs.record(served, out, episodes=6, num_envs=2)
  server = f'the server at {served.replay.address}'
  assert recording.report.endswith(f' sequences in {out} and {server}')
  run = runs.Run(served, tmp_path / 'run')
  assert _table(run).size == recording.manifest.sequences
  run.system.parts.close()


def test_in_lock_step_two_runs_are_equal(tmp_path):
  _record(tmp_path / 'demos')
  values = {'deterministic': True, 'replay__samples_per_insert': 0.5}
  config = _student(tmp_path / 'demos', **values)
  params = []
  for name in 'ab':
    run = runs.Run(config, tmp_path / name)
    run.train()
    params.append(run.params)
  assert runs.column(tmp_path / 'a', _SAMPLES)[-1] > 0
  np.testing.assert_equal(*params)


@pytest.mark.parametrize(
  'fraction,message',
  [(0.3, r'give 0\.25 \(that is 1\)'), (0.0, 'above 0 and below 1')],
)
def test_refuses_in_one_sentence(tmp_path, fraction, message):
  config = recording_runs.student(
    demonstrations__path='x',
    demonstrations__fraction=fraction,
    demonstrations__max_size=9,
  )
  with pytest.raises(ValueError, match=message):
    runs.Run(config, tmp_path / 'run')
