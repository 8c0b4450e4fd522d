"""Draws the curves of runs on two pages; needs no display and no JAX."""

import itertools
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib import axes as mpl_axes
from matplotlib import figure as mpl_figure
from matplotlib import lines, ticker
from matplotlib.backends import backend_pdf

from seedrl_jax.lab import tables
from seedrl_jax.lab.plots import algorithms, curves
from seedrl_jax.runtime import progress

# Of a legend.
_CHARACTERS_PER_INCH = 12
LOOKS: Any = {
  'axes.grid': True,
  'axes.axisbelow': True,
  'axes.xmargin': 0.02,
  'axes.spines.left': False,
  'axes.spines.right': False,
  'axes.spines.top': False,
  'grid.color': '#e4e7ec',
}
_CAPTION = 'line: training (mean of seeds), shaded: minimum to maximum'
# Columns of the second page, and its size in inches.
_COLUMNS, _WIDTH, _ROW_HEIGHT = 4, 11.0, 1.75


class Axis(NamedTuple):
  """What curves are drawn over.

  Attributes:
    column: name in metrics.csv.
    label: of the axis.
  """

  column: str
  label: str


AXES: Mapping[str, Axis] = {
  'frames': Axis(curves.FRAMES, 'environment frames'),
  'time': Axis(curves.SECONDS, 'wall clock'),
  'updates': Axis(curves.UPDATES, 'updates'),
}
# Panels of the second page and their titles. Losses of other names, as of an
# agent of the user's own, come behind these losses.
_LOSSES = {
  'losses/total': 'loss',
  'losses/policy': 'policy loss',
  'losses/baseline': 'value loss',
  'losses/critic': 'critic loss',
  'losses/td_error': 'TD error',
  'losses/entropy': 'entropy, nats',
  'losses/kl': 'KL, acting to learner policy',
  'losses/gradient_norm': 'gradient norm',
  'losses/value_mean': 'mean value',
  'losses/explained_variance': 'explained variance of the value',
  'losses/q_mean': 'mean Q-value',
}
_HEALTH = {
  'health/dead_share': 'share of dead units',
  'health/value_std': 'standard deviation of the value',
  'health/clipped_share': 'share of clipped gradients',
}
_STORE = {
  'replay/policy_lag_mean_batches': 'policy lag, batches',
  'replay/samples_per_insert': 'replay ratio',
}
# Together in the last row, as they say what the run waits for.
_WAITS = {
  'time/wait_envs_for_actions_share': 'environments wait for actions',
  'time/wait_inference_for_envs_share': 'inference waits for environments',
  'time/wait_inference_for_learner_share': 'inference waits for learner',
  'time/wait_learner_for_data_share': 'learner waits for data',
}
_TITLES = _LOSSES | _HEALTH | _STORE | _WAITS
# Before the name of a task, in columns of a run of several.
_TASK, _EVALUATED_TASK = 'rollout/return/', 'eval/return/'
# Losses that are set by the user, or close to others.
_LEFT_OUT = (
  'losses/learning_rate',
  'losses/entropy_cost',
  'losses/masked_share',
  'losses/update_norm',
  'losses/rho',
  'losses/rho_clipped_share',
  'losses/value_target',
  'losses/q_target',
  'losses/q_max',
)


def plot(
  runs: Sequence[curves.RunCurves],
  out: str | pathlib.Path,
  x: str | None = None,
  smooth: int = 1,
) -> list[pathlib.Path]:
  """Draws the curves of runs; returns the files.

  Args:
    out: file of the first page (PNG, PDF or SVG). The second is in `NAME-2`
      beside it, or in the same PDF.
    x: a key of `AXES`. By default frames, and also minutes on the first page.
    smooth: reports of a moving mean.

  Raises:
    ValueError: if `out` is of another format.
    OSError: if a file cannot be written.
  """
  runs = [curves.smoothed(run, smooth) for run in runs]
  groups, out = curves.group_runs(runs), pathlib.Path(out)
  pages = [draw(groups, [x] if x else ['frames', 'time'])]
  if rows := details(runs):
    pages.append(draw_details(groups, rows, x or 'frames'))
  if out.suffix == '.pdf':
    with backend_pdf.PdfPages(out) as file:
      for page in pages:
        file.savefig(page)
    return [out]
  files = [out, out.with_stem(f'{out.stem}-2')][: len(pages)]
  for file, page in zip(files, pages, strict=True):
    page.savefig(file, dpi=150)
  return files


def draw(
  groups: Sequence[curves.SeedGroup], axes: Sequence[str]
) -> mpl_figure.Figure:
  """Draws return and throughput (rows) over each of `axes` (columns)."""
  with matplotlib.rc_context(LOOKS):
    figure = mpl_figure.Figure(figsize=(_WIDTH, 7), layout='constrained')
    grid = figure.subplots(
      2, len(axes), sharex='col', sharey='row', squeeze=False
    )
    for (above, below), x in zip(grid.T, axes, strict=True):
      axis = AXES[x]
      for group, color in _colored(groups):
        _draw_group(above, group, axis, 'rollout/return', color)
        _draw_group(below, group, axis, 'time/frames_per_s', color)
        _draw_evaluation(above, group, axis, 'eval/return', color)
      label_x(below, axis)
    grid[0, 0].set_ylabel('mean return, last 100 episodes')
    grid[1, 0].set_ylabel('frames per second')
    grid[1, 0].set_ylim(bottom=0)
    for panel in grid[:, 0]:
      panel.yaxis.set_major_formatter(count_text)
    _label(figure, groups, f'{_CAPTION}, dotted: evaluation')
  return figure


def details(runs: Iterable[curves.RunCurves]) -> list[list[str]]:
  """Returns rows of the columns of the second page that have numbers."""
  columns = dict.fromkeys(
    name
    for run in runs
    for name in run.columns
    if curves.curve(run, curves.FRAMES, name)[0].size
  )
  more = [name for name in columns if name.startswith('losses/')]
  tasks = [name for name in columns if name.startswith(_TASK)]
  names = dict.fromkeys([*_LOSSES, *more, *_HEALTH, *_STORE])
  shown = [x for x in names if x in columns and x not in _LEFT_OUT]
  waits = [name for name in _WAITS if name in columns]
  rows = [
    part[i : i + _COLUMNS]
    for part in (tasks, shown)
    for i in range(0, len(part), _COLUMNS)
  ]
  return [*rows, waits] if waits else rows


def draw_details(
  groups: Sequence[curves.SeedGroup], rows: Sequence[Sequence[str]], x: str
) -> mpl_figure.Figure:
  """Draws a small panel for each column in `rows`, see `details`."""
  size = _WIDTH, 1 + _ROW_HEIGHT * len(rows)
  with matplotlib.rc_context({**LOOKS, 'font.size': 8}):
    figure = mpl_figure.Figure(figsize=size, layout='constrained')
    grid = figure.subplots(len(rows), _COLUMNS, sharex=True, squeeze=False)
    for panels, columns in zip(grid, rows, strict=True):
      for panel, column in itertools.zip_longest(panels, columns):
        if column is None:
          panel.remove()
          continue
        for group, color in _colored(groups):
          _draw_group(panel, group, AXES[x], column, color)
          if column.startswith(_TASK):
            evaluated = column.replace(_TASK, _EVALUATED_TASK)
            _draw_evaluation(panel, group, AXES[x], evaluated, color)
        name = column.removeprefix('losses/').replace('_', ' ')
        name = name.removeprefix(_TASK)
        panel.set_title(_TITLES.get(column, name), fontsize=9)
        panel.yaxis.set_major_formatter(count_text)
        if column in _WAITS:
          panel.set_ylim(0, 1)
          panel.yaxis.set_major_formatter(ticker.PercentFormatter(1.0))
    for panel in grid[-1, : len(rows[-1])]:
      label_x(panel, AXES[x])
    _label(figure, groups, _CAPTION)
  return figure


def count_text(value: float, position: float = 0.0) -> str:
  """Returns the text at a tick, such as 0.5, 950, 200k or 5M."""
  del position
  is_large = abs(value) >= 1e4
  text = progress.format_count(value) if is_large else f'{value:g}'
  return ticker.Formatter.fix_minus(text)


class _TimeLocator(ticker.MaxNLocator):
  """Places ticks at round numbers of seconds, minutes or hours."""

  def tick_values(self, vmin: float, vmax: float) -> Sequence[float]:
    unit, _ = tables.time_unit(vmax)
    values = np.asarray(super().tick_values(vmin / unit, vmax / unit))
    return (unit * values).tolist()


class _TimeFormatter(ticker.Formatter):
  """Writes seconds at ticks as 90 s, 5 min or 1.5 h."""

  def __call__(self, x: float, pos: int | None = None) -> str:
    del pos
    assert self.axis is not None
    unit, name = tables.time_unit(self.axis.get_view_interval()[1])
    return f'{x / unit:g} {name}'


def label_x(panel: mpl_axes.Axes, axis: Axis) -> None:
  """Labels the horizontal axis of a panel."""
  panel.set_xlabel(axis.label)
  if axis.column == curves.SECONDS:
    panel.xaxis.set_major_locator(_TimeLocator(nbins=6))
    panel.xaxis.set_major_formatter(_TimeFormatter())
  else:
    panel.xaxis.set_major_formatter(count_text)


def _label(
  figure: mpl_figure.Figure, groups: Sequence[curves.SeedGroup], caption: str
) -> None:
  """Adds legend and caption."""
  figure.supxlabel(caption, x=0.99, ha='right', fontsize=8)
  handles = [
    lines.Line2D([], [], color=color, lw=2, label=group.label)
    for group, color in _colored(groups)
  ]
  add_legend(figure, handles)


def add_legend(
  figure: mpl_figure.Figure, handles: Sequence[lines.Line2D]
) -> None:
  """Adds labels above the panels, as many side by side as fit."""
  longest = max((len(str(line.get_label())) for line in handles), default=1)
  width = int(_CHARACTERS_PER_INCH * figure.get_figwidth())
  figure.legend(
    handles=handles,
    loc='outside upper left',
    ncols=max(1, width // (longest + 8)),
    frameon=False,
    fontsize=10,
  )


def _colored(
  groups: Sequence[curves.SeedGroup],
) -> Iterator[tuple[curves.SeedGroup, str]]:
  names = [algorithms.name(g.runs[0].config) or g.label for g in groups]
  return zip(groups, algorithms.shades(names), strict=True)


def _draw_evaluation(
  axes: mpl_axes.Axes,
  group: curves.SeedGroup,
  axis: Axis,
  y: str,
  color: str,
) -> None:
  """Draws the mean of seeds as a dotted line, if there are evaluations."""
  evaluation = curves.band(group, axis.column, y)
  if evaluation is not None:
    axes.plot(evaluation.x, evaluation.mean, ':', color=color)


def _draw_group(
  axes: mpl_axes.Axes,
  group: curves.SeedGroup,
  axis: Axis,
  y: str,
  color: str,
) -> None:
  """Draws a run as a line, and seeds as faint lines with mean and band."""
  is_alone = len(group.runs) == 1
  for run in group.runs:
    x_values, y_values = curves.curve(run, axis.column, y)
    axes.plot(
      x_values,
      y_values,
      color=color,
      lw=1.8 if is_alone else 0.6,
      alpha=1.0 if is_alone else 0.35,
    )
  summary = None if is_alone else curves.band(group, axis.column, y)
  if summary is not None:
    axes.fill_between(
      summary.x, summary.low, summary.high, color=color, alpha=0.18, linewidth=0
    )
    axes.plot(summary.x, summary.mean, color=color, lw=2)
