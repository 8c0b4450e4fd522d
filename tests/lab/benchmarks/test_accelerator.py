"""Tests of `seedrl_jax.lab.benchmarks.accelerator` on a tiny run."""

import threading

import pytest

from seedrl_jax.lab.benchmarks import accelerator, environments, timing, whole
from seedrl_jax.run import system
from tests import runs

_LONG = 1e6


def _raise(error):
  raise error


def test_work_that_fails_has_a_reason_and_the_next_is_done():
  text = 'Thread a failed.\nTraceback\n  File "x"\nx.OutError: no room.\nMore.'
  with accelerator.Session(_LONG) as session:
    for error, reason in {
      system.RunFailed(text): '^x.OutError: no room.$',
      ValueError('One.\nTwo.'): '^ValueError: One.$',
      StopIteration(): '^StopIteration: $',
    }.items():
      with pytest.raises(accelerator.NotMeasured, match=reason):
        session.do(lambda error=error: _raise(error))
    assert session.do(lambda: 1) == 1


def test_late_work_is_left_and_none_is_begun_after_it():
  session, event = accelerator.Session(0.05), threading.Event()
  try:
    for work in (event.wait, lambda: pytest.fail('It was begun.')):
      with pytest.raises(accelerator.NotMeasured, match='out of time'):
        session.do(work)
  finally:
    event.set()


def _cases(**values):
  config = runs.tiny(num_eval_envs=0, total_env_frames=10**9, **values)
  streams = environments.free_streams(config)
  return [whole.Case('free_resnet 4', config, streams)]


def _measure(capsys, seconds, cases):
  """Returns the printed rows, by their first two cells."""
  windows = timing.Windows(2, 0.01)
  with accelerator.Session(seconds) as session:
    accelerator.measure(session, cases, windows, windows)
  lines = capsys.readouterr().out.splitlines()
  cells = [line.strip('| ').split(' | ') for line in lines]
  return {tuple(row[:2]): row[2:] for row in cells}


def test_measures_stages_and_runs(capsys):
  (case,) = _cases()
  streams = {'streams': lambda *_: _raise(OSError('No room.'))}
  bad = case._replace(name='free_resnet 5', **streams)
  cells = _measure(capsys, _LONG, [case, bad])
  assert ('stage alone', 'steps/s, median (min–max)') in cells
  frames = cells['free_resnet 4', '4'][6]
  assert float(frames.replace(',', '')) > 0
  assert cells['free_resnet 5', '-'][-1] == 'OSError: No room.'
  name = accelerator.TARGETS[2].name
  assert cells[name, '330,000'][0] == frames
  assert cells[accelerator.TARGETS[0].name, '0.90'] == [
    '-',
    '-',
    'not measured',
  ]


def test_without_time_nothing_is_begun_and_all_is_named(capsys):
  cells = _measure(capsys, 0.0, _cases())
  late = accelerator.OUT_OF_TIME
  assert cells['free_resnet 4', '-'][-1] == late


def test_the_best_case_counts_for_a_target():
  figures = {
    'pong_nature 1': accelerator.Figures(20_000.0, 0.45),
    'pong_nature 2': accelerator.Figures(14_000.0, 0.9),
    'pong_resnet 1': accelerator.Figures(90_000.0, 0.1),
  }
  rows = [tuple(row.values()) for row in accelerator.target_rows(figures)]
  assert [row[1:] for row in rows[:3]] == [
    ('0.90', '0.90', '1.00', 'pong_nature 2'),
    ('28,000', '20,000', '0.71', 'pong_nature 1'),
    ('330,000', '-', '-', 'not measured'),
  ]
