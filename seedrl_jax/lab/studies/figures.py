"""Draws a study's curves and profiles."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib import axes as mpl_axes
from matplotlib import figure as mpl_figure

from seedrl_jax.lab.plots import algorithms, curves, plotting
from seedrl_jax.lab.studies import results, statistics

# Points of a curve, each with an interval of this many resamples.
_POINTS = 61
_REPS = 2000
_COLUMNS = 3
# A few games at a hundred times the human score would hide all others.
_MOST = 8.0
_STYLES = ('-', (0, (5, 2)), (0, (1, 1)))


def draw_all(study: results.Study) -> dict[str, mpl_figure.Figure]:
  """Returns the figures by file name."""
  with matplotlib.rc_context(plotting.LOOKS):
    figures = {
      'frames.png': _curves(study, plotting.AXES['frames']),
      'wall_clock.png': _curves(study, plotting.AXES['time']),
    }
    if study.common_tasks:
      figures['profiles.png'] = _profiles(study)
  return figures


def _looks(study: results.Study) -> list[tuple[str, dict[str, Any]]]:
  """Returns the algorithms and their lines; equal lines show through."""
  configs = {r.algorithm: r.run.config for r in study.counted}
  names = [algorithms.name(configs[label]) for label in study.algorithms]
  looks = zip(
    study.algorithms,
    algorithms.shades(names),
    itertools.cycle(_STYLES),
    strict=False,
  )
  return [
    (label, {'color': color, 'ls': style, 'lw': 2, 'label': label})
    for label, color, style in looks
  ]


def _profiles(study: results.Study) -> mpl_figure.Figure:
  """Draws the share of runs that have more than each score."""
  all_scores = np.concatenate([
    task for a in study.algorithms for task in study.scaled(a)
  ])
  low, high = all_scores.min(), all_scores.max()
  if study.scale.text:
    high = min(high, _MOST)
  margin = 0.03 * (high - low) or 1.0
  thresholds = np.linspace(low - margin, high + margin, 401)
  figure = mpl_figure.Figure(figsize=(8, 5), layout='constrained')
  axes = figure.subplots()
  for algorithm, look in _looks(study):
    scores = study.scaled(algorithm)
    if statistics.has_interval(scores):
      resamples = statistics.resample(scores, _REPS)
      shares = statistics.profile(resamples, thresholds)
      axes.fill_between(
        thresholds, *statistics.interval(shares), **_band(look, 'post')
      )
    shares = statistics.profile(scores, thresholds)
    axes.step(thresholds, shares, where='post', **look)
  axes.set_title(_title(study.common_tasks), fontsize=11)
  axes.set_xlabel(f'{study.scale.name} τ')
  axes.set_ylabel('share of runs with more than τ')
  axes.set_ylim(-0.02, 1.02)
  plotting.add_legend(figure, axes.lines)
  return figure


def _curves(study: results.Study, axis: plotting.Axis) -> mpl_figure.Figure:
  """Draws a panel for all tasks, if there are several, and one for each."""
  panels = [[task] for task in study.tasks]
  if len(study.common_tasks) > 1:
    panels.insert(0, study.common_tasks)
  columns = min(_COLUMNS, len(panels))
  rows = -(-len(panels) // columns)
  figure = mpl_figure.Figure(
    figsize=(max(8.0, 4.2 * columns), 0.8 + 3.6 * rows), layout='constrained'
  )
  grid = figure.subplots(rows, columns, squeeze=False).flat
  for axes, tasks in itertools.zip_longest(grid, panels):
    if tasks is None:
      axes.remove()
      continue
    for algorithm, look in _looks(study):
      _draw_curve(axes, study, algorithm, tasks, axis, look)
    axes.set_title(_title(tasks), fontsize=11)
    name = study.scale.name if len(tasks) > 1 else 'return'
    axes.set_ylabel(f'{name} (IQM)')
    plotting.label_x(axes, axis)
    axes.yaxis.set_major_formatter(plotting.count_text)
    axes.set_xlim(left=0)
  plotting.add_legend(figure, figure.axes[0].lines)
  return figure


def _draw_curve(
  axes: mpl_axes.Axes,
  study: results.Study,
  algorithm: str,
  tasks: Sequence[str],
  axis: plotting.Axis,
  look: Mapping[str, Any],
) -> None:
  curves = stack(study, algorithm, tasks, axis.column)
  # An empty line, too, is in the legend.
  (line,) = axes.plot([], [], **look)
  if curves is None:
    return
  grid, values = curves
  points = [[task[:, i] for task in values] for i in range(len(grid))]
  line.set_data(grid, [statistics.iqm(scores) for scores in points])
  if statistics.has_interval(points[0]):
    limits = np.stack([
      statistics.interval(statistics.iqm(statistics.resample(scores, _REPS)))
      for scores in points
    ])
    axes.fill_between(grid, *limits.T, **_band(look))
  axes.relim()
  axes.autoscale_view()


def stack(
  study: results.Study, algorithm: str, tasks: Sequence[str], x: str
) -> tuple[np.ndarray, list[np.ndarray]] | None:
  """Returns values of `x`, and returns `[runs, N]` of each task over them.

  Those of several tasks are scaled. They cover what all runs share; None if
  this is nothing, or a run has no curve.
  """
  runs = [study.runs(algorithm, task) for task in tasks]
  flat = [result.run for of_task in runs for result in of_task]
  common = curves.shared(flat, x, study.column, _POINTS)
  if common is None or len(common[1]) < len(flat):
    return None
  grid, values = common
  ends = np.cumsum([len(of_task) for of_task in runs])[:-1]
  split = np.split(values, ends)
  if len(tasks) > 1:
    split = [study.scale(*pair) for pair in zip(tasks, split, strict=True)]
  return grid, split


def without_curve(study: results.Study) -> list[str]:
  """Returns the algorithms and tasks whose runs have too few rows for one."""
  return [
    f'{algorithm} on {task}'
    for algorithm, task in itertools.product(study.algorithms, study.tasks)
    if study.runs(algorithm, task)
    and stack(study, algorithm, [task], results.FRAMES) is None
  ]


def _title(tasks: Sequence[str]) -> str:
  return tasks[0] if len(tasks) == 1 else f'{len(tasks)} tasks'


def _band(look: Mapping[str, Any], step: str | None = None) -> dict[str, Any]:
  return {'color': look['color'], 'alpha': 0.18, 'linewidth': 0, 'step': step}
