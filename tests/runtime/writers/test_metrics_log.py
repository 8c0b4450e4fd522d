"""Tests for seedrl_jax/runtime/writers/metrics_log.py."""

import json
import os
import sys
import threading
from concurrent import futures

import pytest

from seedrl_jax.runtime import file_io, report
from seedrl_jax.runtime.writers import metrics_log, text_logs
from tests.patience import PATIENCE
from tests.runtime.writers import rows, test_event_log

_OWN = 'tests.runtime.writers.rows'
_FILES = ('csv', 'tensorboard', 'jsonl')


def _log(folder, *names):
  """Returns a folder's curves and what they report."""
  messages = []
  makes = metrics_log.load(names or _FILES)
  return metrics_log.MetricsLog(makes, folder, None, messages.append), messages


def _settle(log):
  """Returns the writers once they have done what they were given so far."""
  settled = [futures.Future() for _ in log._threads]
  for thread, future in zip(log._threads, settled, strict=True):
    thread.call(future.set_result)
  return [future.result(PATIENCE) for future in settled]


def _csv(folder):
  return text_logs.read_csv(folder / 'metrics.csv')[1]


def test_all_files_say_the_same_and_go_back_together(tmp_path):
  for start in (0, 2, 4):
    log, messages = _log(tmp_path)
    log.roll_back(start, 100 * start)
    # A start's last row is later than the next one's first.
    for i in range(start + 1, start + 4):
      log.write(rows.row(i, x=i / 4, y=None))
    log.close()
    assert not messages
  assert _csv(tmp_path) == [
    [str(i), str(100 * i), str(i / 4), ''] for i in range(1, 8)
  ]
  lines = (tmp_path / 'metrics.jsonl').read_text().splitlines()
  assert [json.loads(line) for line in lines] == [
    rows.row(i, x=i / 4, y=None) for i in range(1, 8)
  ]
  events = test_event_log.read_events(tmp_path / 'tensorboard')
  values = [(value, step) for tag, value, step in events if tag == 'x']
  assert sorted(values) == [(i / 4, 100 * i) for i in range(1, 8)]
  assert len(list((tmp_path / 'tensorboard').iterdir())) == 3


def test_a_writer_that_changes_its_row_changes_no_others(tmp_path, monkeypatch):
  monkeypatch.setattr(rows.Fragile, 'write', lambda _, row: row.clear())
  log, messages = _log(tmp_path, f'{_OWN}:fragile', 'csv')
  row = rows.row(1)
  log.write(row)
  log.close()
  assert row == rows.row(1) and not messages


@pytest.mark.parametrize(
  ('part', 'name'), [('csv', 'csv'), ('tfevents', 'tensorboard')]
)
def test_full_disk_costs_rows_of_one_file(tmp_path, monkeypatch, part, name):
  log, messages = _log(tmp_path)
  log.write(rows.row(1, x=1))
  _settle(log)
  append = file_io.append_whole

  def fail(path, data):
    if part in path.name:
      raise OSError(28, 'No space left on device')
    append(path, data)

  with monkeypatch.context() as patch:
    patch.setattr(file_io, 'append_whole', fail)
    log.write(rows.row(2, x=1))
    log.write(rows.row(3, x=1))
    _settle(log)
  (sentence,) = messages
  assert sentence.startswith(f'The writer {name} fails: OSError: [Errno 28] No')
  log.write(rows.row(4, x=1))
  log.close()
  some, full = [100, 400], [100, 200, 300, 400]
  events = some if name == 'tensorboard' else full
  assert test_event_log.steps(tmp_path) == events
  frames = [int(row[1]) for row in _csv(tmp_path)]
  assert frames == (some if name == 'csv' else full)


def test_rows_that_cannot_be_dropped_keep_no_events_from_it(
  tmp_path, monkeypatch
):
  def fail(*args):
    raise OSError(28, 'No space left on device')

  log, messages = _log(tmp_path, 'csv', 'tensorboard')
  log.write(rows.row(1, x=1))
  _settle(log)
  monkeypatch.setattr(os, 'replace', fail)
  log.roll_back(0, 0)
  log.close()
  (sentence,) = messages
  assert sentence.startswith('The writer csv fails: NotWritten: ')
  assert _csv(tmp_path) == [['1', '100', '1']]
  assert not test_event_log.steps(tmp_path)


@pytest.mark.parametrize('error', [KeyError, SystemExit, KeyboardInterrupt])
def test_a_writer_of_ones_own_that_fails_is_said_once_and_goes_on(
  tmp_path, monkeypatch, error
):
  log, messages = _log(tmp_path, f'{_OWN}:fragile', 'csv')
  monkeypatch.setattr(rows.Fragile, 'error', error)
  monkeypatch.setattr(rows.Fragile, 'fails_at', ('roll_back', 'write', 'close'))
  log.roll_back(0, 0)
  for i in (1, 2):
    log.write(rows.row(i))
  own, _ = _settle(log)
  (sentence,) = messages
  assert sentence.startswith(
    f'The writer {_OWN}:fragile fails: {error.__name__}: '
  )
  assert 'rows.py, line ' in sentence and sentence.endswith('works again.')
  monkeypatch.setattr(rows.Fragile, 'fails_at', ('write', 'close'))
  log.write(rows.row(3))
  log.close()
  assert own.calls == ['roll_back', 'write', 'write', 'write', 'close']
  assert len(messages) == 2 and len(_csv(tmp_path)) == 3


@pytest.mark.parametrize(('hangs_at', 'left'), [('write', 3), ('close', 1)])
def test_one_that_hangs_is_named_and_holds_up_nothing(
  tmp_path, monkeypatch, hangs_at, left
):
  started, go = threading.Event(), threading.Event()

  def hang(*unused):
    started.set()
    assert go.wait(PATIENCE)

  monkeypatch.setattr(metrics_log, '_CLOSE_SECONDS', 0.0)
  monkeypatch.setattr(rows.Fragile, hangs_at, hang)
  log, messages = _log(tmp_path, f'{_OWN}:fragile', 'csv')
  hanging, csv = log._threads
  log.write(rows.row(1))
  log.write(rows.row(2))
  for thread in (hanging, csv):
    thread.call(None)
  csv._thread.join(PATIENCE)
  assert len(_csv(tmp_path)) == 2 and started.wait(PATIENCE)
  log.close()
  assert messages == [
    f'The writer {_OWN}:fragile is not done after 0 s; the run ends without it '
    'and its last reports.'
  ]
  go.set()
  hanging._thread.join(PATIENCE)
  # It leaves alone what a later run may have written meanwhile.
  assert hanging._calls.qsize() == left


def test_one_that_is_too_slow_misses_reports(tmp_path, monkeypatch):
  go, writes = threading.Event(), []
  monkeypatch.setattr(metrics_log, '_MOST_CALLS', 2)
  monkeypatch.setattr(metrics_log, '_CLOSE_SECONDS', PATIENCE)

  def write(writer, row):
    started.set()
    assert go.wait(PATIENCE)
    writes.append(row[report.UPDATES])

  started = threading.Event()
  monkeypatch.setattr(rows.Fragile, 'write', write)
  log, messages = _log(tmp_path, f'{_OWN}:fragile')
  log.write(rows.row(1))
  assert started.wait(PATIENCE)
  for i in (2, 3, 4, 5):
    log.write(rows.row(i))
  go.set()
  log.close()
  assert writes == [1, 2, 3]
  (sentence,) = messages
  assert sentence.startswith(f'The writer {_OWN}:fragile is 2 reports behind')


def test_one_that_hangs_at_its_beginning_is_refused(tmp_path, monkeypatch):
  go, closed = threading.Event(), threading.Event()
  monkeypatch.setattr(metrics_log, '_OPEN_SECONDS', 0.0)

  def hang(_):
    assert go.wait(PATIENCE)

  monkeypatch.setattr(rows.Fragile, '__init__', hang)
  monkeypatch.setattr(rows.Fragile, 'close', lambda _: closed.set())
  with pytest.raises(metrics_log.NotOpened, match='cannot begin: it is not do'):
    _log(tmp_path, f'{_OWN}:fragile')
  go.set()
  assert closed.wait(PATIENCE)


@pytest.mark.parametrize(
  ('name', 'reason'),
  [
    ('nowhere:make', 'there is no module nowhere, neither in'),
    (f'{_OWN}:nothing', f'the module {_OWN} .* has no function nothing.'),
    (':make', 'must be module:function.'),
  ],
)
def test_what_is_not_there_is_refused_by_its_flag(name, reason):
  with pytest.raises(ValueError, match=f'^--config.log.writers={name}: ') as e:
    metrics_log.load(['csv', name])
  assert e.match(reason)


def test_a_missing_package_is_said(monkeypatch):
  monkeypatch.setitem(sys.modules, 'wandb', None)
  module = 'seedrl_jax.runtime.writers.wandb_log'
  monkeypatch.delitem(sys.modules, module, raising=False)
  with pytest.raises(ValueError, match=r'writers=wandb: .* fails .*wandb'):
    metrics_log.load(['csv', 'wandb'])


@pytest.mark.parametrize(
  ('name', 'reason'),
  [
    ('refusing', 'OSError: no such place .*rows.py, line '),
    ('forgetful', "AttributeError: 'NoneType' object has no .*description"),
  ],
)
def test_one_that_cannot_begin_is_refused_and_others_closed(
  tmp_path, monkeypatch, name, reason
):
  calls = []
  monkeypatch.setattr(rows.Fragile, 'close', lambda self: calls.append('close'))
  with pytest.raises(metrics_log.NotOpened, match=f' cannot begin: {reason}'):
    _log(tmp_path, f'{_OWN}:fragile', f'{_OWN}:{name}')
  assert calls == ['close']
