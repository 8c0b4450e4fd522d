"""Tests for seedrl_jax/runtime/plotting.py: contents, not looks."""

import numpy as np
import pytest

from seedrl_jax.runtime import curves, plotting

_TIME = np.array([60.0, 120.0, 180.0])


def _run(name: str, offset: float = 0.0) -> curves.RunCurves:
  columns = {
    'time/elapsed_s': _TIME,
    'time/env_frames': 1000 * _TIME,
    'rollout/return': np.array([np.nan, 10.0, 20.0]) + offset,
    'eval/return': np.array([np.nan, 15.0, 25.0]) + offset,
    'time/frames_per_s': np.array([1000.0, 1000.0, 1000.0]) + offset,
  }
  return curves.RunCurves(name, {}, columns)


def _solid(axes):
  return [line for line in axes.lines if line.get_linestyle() == '-']


def test_single_run_is_a_line_in_each_panel():
  figure = plotting.draw([curves.SeedGroup('one', [_run('a')])])
  returns, returns_time, speed, speed_time = figure.axes
  np.testing.assert_allclose(_solid(returns)[0].get_xdata(), [120e3, 180e3])
  np.testing.assert_allclose(_solid(returns)[0].get_ydata(), [10, 20])
  np.testing.assert_allclose(_solid(returns_time)[0].get_xdata(), [2, 3])
  np.testing.assert_allclose(_solid(speed)[0].get_ydata(), [1000] * 3)
  np.testing.assert_allclose(_solid(speed_time)[0].get_xdata(), [1, 2, 3])
  assert not any(axes.collections for axes in figure.axes)


def test_evaluation_is_dotted_beside_the_returns_only():
  figure = plotting.draw([curves.SeedGroup('one', [_run('a')])])
  dotted = [len(axes.lines) - len(_solid(axes)) for axes in figure.axes]
  assert dotted == [1, 1, 0, 0]


def test_seeds_are_a_band_their_mean_and_faint_lines():
  group = curves.SeedGroup('two', [_run('a'), _run('b', offset=4.0)])
  figure = plotting.draw([group])
  axes = figure.axes[0]
  assert len(axes.collections) == 1
  mean = _solid(axes)[-1]
  np.testing.assert_allclose(mean.get_ydata()[[0, -1]], [12, 22])
  assert [line.get_alpha() for line in _solid(axes)] == [0.35, 0.35, None]


def test_groups_have_their_own_colour_and_legend_entry():
  groups = [curves.SeedGroup(name, [_run(name)]) for name in 'abc']
  figure = plotting.draw(groups)
  colors = {line.get_color() for line in _solid(figure.axes[0])}
  assert len(colors) == 3
  texts = [text.get_text() for text in figure.legends[0].get_texts()]
  assert texts == ['a', 'b', 'c']


def test_run_without_a_finished_episode_still_draws():
  run = _run('a')
  nothing = np.full(3, np.nan)
  columns = {**run.columns, 'rollout/return': nothing}
  figure = plotting.draw([
    curves.SeedGroup('a', [run._replace(columns=columns)])
  ])
  assert _solid(figure.axes[2])[0].get_xdata().size == 3


@pytest.mark.parametrize('suffix', ['png', 'svg'])
def test_plot_writes_the_file(tmp_path, suffix):
  text = 'time/elapsed_s,time/env_frames,time/frames_per_s\n1,10,10\n2,20,10\n'
  (tmp_path / 'metrics.csv').write_text(text)
  out = tmp_path / f'plot.{suffix}'
  plotting.plot([tmp_path], out)
  assert out.stat().st_size > 1000


@pytest.mark.parametrize(
  ('name', 'reason'),
  [
    ('plot.xyz', "Format 'xyz' is not supported"),
    ('absent/plot.png', 'No such file or directory'),
  ],
)
def test_plot_says_which_file_it_cannot_write(tmp_path, name, reason):
  (tmp_path / 'metrics.csv').write_text(
    'time/elapsed_s,time/env_frames\n1,10\n2,20\n'
  )
  with pytest.raises(ValueError, match=f'^--out=.*{name} .*{reason}'):
    plotting.plot([tmp_path], tmp_path / name)
