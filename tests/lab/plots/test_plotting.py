"""Tests for seedrl_jax/lab/plots/plotting.py: contents, not looks."""

from typing import Any

import numpy as np
import pytest
from matplotlib import figure as mpl_figure

from seedrl_jax.lab.plots import curves, plotting

_HEADER = 'time/updates,time/elapsed_s,time/env_frames,rollout/return'
_COLUMNS = {
  'time/elapsed_s': [60, 120, 180],
  'time/env_frames': [60e3, 120e3, 180e3],
  'time/updates': [1, 2, 3],
  # Before the first episode ended.
  'rollout/return': [np.nan, 10, 20],
  'time/frames_per_s': [1000] * 3,
}


def _run(**columns: Any) -> curves.RunCurves:
  arrays = {k: np.array(v, float) for k, v in (_COLUMNS | columns).items()}
  return curves.RunCurves('a', {}, arrays)


def test_single_runs_are_lines_in_each_panel():
  group = curves.SeedGroup('a', [_run()])
  figure = plotting.draw([group], ['frames', 'time'])
  returns, seconds, speed, _ = (axes.lines[0] for axes in figure.axes)
  np.testing.assert_allclose(returns.get_xdata(), [120e3, 180e3])
  np.testing.assert_allclose(returns.get_ydata(), [10, 20])
  np.testing.assert_allclose(seconds.get_xdata(), [120, 180])
  np.testing.assert_allclose(speed.get_ydata(), [1000] * 3)
  figure = plotting.draw([group], ['updates'])
  returns, speed = (axes.lines[0] for axes in figure.axes)
  np.testing.assert_allclose(returns.get_xdata(), [2, 3])


@pytest.mark.parametrize(
  ('x', 'end', 'texts'),
  [
    ('frames', 5e6, ['0', '1M', '5M']),
    ('frames', 2e5, ['0', '50k', '200k']),
    ('updates', 1e3, ['0', '200', '1000']),
    ('time', 60, ['0 s', '20 s', '60 s']),
    ('time', 3000, ['0 min', '10 min', '50 min']),
    ('time', 9000, ['0 h', '0.5 h', '2.5 h']),
  ],
)
def test_ticks_have_readable_units(x, end, texts):
  panel = mpl_figure.Figure().subplots()
  panel.plot([0, end], [0, 1])
  panel.set_xlim(0, end)
  plotting.label_x(panel, plotting.AXES[x])
  panel.figure.canvas.draw()
  labels = {tick.get_text() for tick in panel.get_xticklabels()}
  assert labels >= {*texts}
  assert plotting.count_text(-0.5) == '−0.5'


def test_second_page_has_panels_of_what_there_is_waits_last():
  runs = [
    _run(**{
      'losses/mine': [1, 2, 3],
      'losses/learning_rate': [1, 1, 1],
      'losses/total': [3, 2, 1],
      'replay/samples_per_insert': [1, 1, 1],
      'rollout/return/Pong-v5': [1, 2, 3],
      'eval/return/Pong-v5': [4, 5, 6],
    }),
    _run(**{
      'losses/entropy': [0.7, 0.6, 0.5],
      'losses/kl': [np.nan] * 3,
      'losses/policy': [0, 0, 0],
      'time/wait_learner_for_data_share': [0.1, 0.2, 0.3],
    }),
  ]
  rows = plotting.details(runs)
  losses = [f'losses/{x}' for x in ('total', 'policy', 'entropy', 'mine')]
  assert rows == [
    ['rollout/return/Pong-v5'],
    losses,
    ['replay/samples_per_insert'],
    ['time/wait_learner_for_data_share'],
  ]
  groups = [curves.SeedGroup('a', [run]) for run in runs]
  figure = plotting.draw_details(groups, rows, 'time')
  titles = [axes.get_title() for axes in figure.axes]
  assert titles == [
    'Pong-v5',
    *('loss', 'policy loss', 'entropy, nats', 'mine', 'replay ratio'),
    'learner waits for data',
  ]
  training, evaluation, *_ = figure.axes[0].lines
  np.testing.assert_allclose(training.get_ydata(), [1, 2, 3])
  np.testing.assert_allclose(evaluation.get_ydata()[[0, -1]], [4, 6])
  total = figure.axes[1].lines[0]
  np.testing.assert_allclose(total.get_xdata(), [60, 120, 180])
  np.testing.assert_allclose(total.get_ydata(), [3, 2, 1])
  # A run without the column is in the legend all the same.
  assert len(figure.legends[0].get_texts()) == 2
  assert plotting.details([_run()]) == []


@pytest.mark.parametrize(
  ('name', 'reason'),
  [
    ('plot.xyz', "Format 'xyz' is not supported"),
    ('absent/plot.png', 'No such file or directory'),
    ('absent/plot.pdf', 'No such file or directory'),
  ],
)
def test_a_file_that_cannot_be_written_is_said(tmp_path, name, reason):
  (tmp_path / 'metrics.csv').write_text(f'{_HEADER}\n1,1,10,\n2,2,20,\n')
  with pytest.raises((OSError, ValueError), match=reason):
    plotting.plot([curves.read_run(tmp_path)], tmp_path / name)
