"""The logs of a run together, and what must not end it."""

import os

import pytest

from seedrl_jax.runtime import curves, events, metrics, workdir
from tests.runtime import test_events


def _log(folder, tensorboard=True):
  """Opens the logs of a folder; returns them and what they say."""
  said = []
  directory = workdir.Workdir(folder)
  return metrics.MetricsLog(directory, tensorboard, said.append), said


def _row(i):
  return {
    'time/elapsed_s': i,
    'time/updates': i,
    'time/env_frames': 100 * i,
    'x': i / 4,
    'y': None,
  }


def test_both_logs_say_the_same_and_go_back_together(tmp_path):
  for start in (0, 2):
    log, said = _log(tmp_path)
    log.roll_back(start, 100 * start)
    # The last row of the first start is later than the second's beginning.
    for i in range(start + 1, start + 4):
      log.write(_row(i))
    assert not said
  events = test_events.read(tmp_path / 'tensorboard')
  values = [(v, s) for tag, v, s in events if tag == 'x']
  assert sorted(values) == [(i / 4, 100 * i) for i in range(1, 6)]
  assert {tag for tag, _, _ in events} == set(_row(0)) - {'y'}
  run = curves.read_run(tmp_path)
  assert run.columns['x'].tolist() == [i / 4 for i in range(1, 6)]
  assert run.columns['time/env_frames'].tolist() == [
    100 * i for i in range(1, 6)
  ]


def test_tensorboard_can_be_off(tmp_path):
  log, _ = _log(tmp_path, tensorboard=False)
  log.write(_row(5))
  log.roll_back(4, 10**9)
  assert [p.name for p in tmp_path.iterdir()] == ['metrics.csv']
  assert len((tmp_path / 'metrics.csv').read_text().splitlines()) == 1


@pytest.mark.parametrize(
  ('name', 'make'),
  [
    ('metrics.csv', lambda p: p.write_bytes(b'\x00\xff\n')),
    ('metrics.csv', lambda p: p.write_text('time,env_frames\n1,2\n')),
    ('metrics.csv', lambda p: p.mkdir()),
    ('metrics.csv', lambda p: p.symlink_to('nowhere')),
    ('tensorboard', lambda p: p.write_text('mine')),
    ('tensorboard', lambda p: p.symlink_to('nowhere')),
  ],
)
def test_what_cannot_be_continued_is_put_aside(tmp_path, name, make):
  make(tmp_path / name)
  log, said = _log(tmp_path)
  log.roll_back(0, 0)
  log.write(_row(1))
  assert os.path.lexists(tmp_path / f'{name}.damaged-1')
  (sentence,) = said
  assert sentence.startswith(f'{tmp_path / name} cannot be continued (')
  assert sentence.endswith(f'); it is now {name}.damaged-1.')
  assert curves.read_run(tmp_path).columns['x'].tolist() == [0.25]
  assert test_events.read(tmp_path / 'tensorboard')


@pytest.mark.parametrize('part', ['csv', 'events'])
def test_full_disk_costs_rows_and_not_the_run(tmp_path, monkeypatch, part):
  log, said = _log(tmp_path)
  log.write(_row(1))
  append = workdir.append_whole

  def fail(path, data):
    if ('tfevents' in path.name) == (part == 'events'):
      raise OSError(28, 'No space left on device')
    append(path, data)

  with monkeypatch.context() as patch:
    patch.setattr(workdir, 'append_whole', fail)
    log.write(_row(2))
    log.write(_row(3))
  assert said == [
    'The curves cannot be written (No space left on device); the run goes on '
    'without them until they can.'
  ]
  log.write(_row(4))
  found = test_events.read(tmp_path / 'tensorboard')
  assert [step for tag, _, step in found if tag == 'x'] == [100, 400]
  assert curves.read_run(tmp_path).columns['x'].tolist()[-1] == 1.0


def test_full_disk_at_the_roll_back(tmp_path, monkeypatch):
  def fail(*args):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(events, '_cut', fail)
  log, said = _log(tmp_path)
  log.write(_row(1))
  log.roll_back(0, 0)
  assert len(said) == 1
