"""Tests for seedrl_jax/runtime/writers/wandb_log.py, without a network."""

import struct

import pytest

from seedrl_jax.configs import base as base_config
from seedrl_jax.runtime.writers import metrics_log
from tests.runtime.writers import rows


def _records(path):
  """Yields the records of a W&B file of one block, in LevelDB's format."""
  from wandb.proto import wandb_internal_pb2

  data, begin = path.read_bytes(), 7
  while begin < len(data):
    _, length, kind = struct.unpack_from('<IHB', data, begin)
    assert kind == 1
    begin += 7
    yield wandb_internal_pb2.Record.FromString(data[begin : begin + length])
    begin += length


def _steps(records):
  return [r.history.step.num for r in records if r.HasField('history')]


def test_starts_are_one_run_whose_step_is_frames(tmp_path, monkeypatch, capfd):
  for name, value in {
    'WANDB_MODE': 'offline',
    'WANDB_ERROR_REPORTING': 'false',
    'WANDB_PROJECT': 'mine',
  }.items():
    monkeypatch.setenv(name, value)
  rows.wait_long(monkeypatch)
  wandb = pytest.importorskip('wandb', reason='wandb is not installed')
  makes = metrics_log.load(['wandb'])
  config = base_config.get_config()
  messages, files = [], []
  for start in (0, 2):
    log = metrics_log.MetricsLog(makes, tmp_path, config, messages.append)
    log.roll_back(start, 100 * start)
    for i in (1, 2, 1):
      log.write(rows.row(start + i, x=0.5, y=None))
    log.close()
    # Its process may still be writing.
    wandb.teardown()
    (path,) = (tmp_path / 'wandb').glob('offline-run-*/*.wandb')
    files.append(list(_records(path)))
    # The next start may have the same name, which holds the second.
    (tmp_path / 'wandb').rename(tmp_path / f'start {start}')
  log_path = f'{tmp_path}/wandb/offline-run-'
  assert [x.startswith('W&B: offline run ') for x in messages] == [True, True]
  assert all(log_path in x and '\n' not in x for x in messages)
  assert [_steps(records) for records in files] == [[100, 200], [300, 400]]
  # W&B itself prints nothing.
  assert capfd.readouterr() == ('', '')
  runs = [r.run for records in files for r in records if r.HasField('run')]
  for run in runs:
    assert run.run_id == (tmp_path / 'wandb_run').read_text()
    assert (run.project, run.display_name) == ('mine', tmp_path.name)
