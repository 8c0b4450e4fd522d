"""Draws curves of runs; needs no display and no JAX."""

import pathlib
from collections.abc import Sequence

import matplotlib
from matplotlib import axes as mpl_axes
from matplotlib import figure as mpl_figure
from matplotlib import ticker
from matplotlib.backends import backend_agg

from seedrl_jax.runtime import columns, curves

# Width of the legend.
_LEGEND_CHARACTERS = 130
_SURFACE = '#ffffff'
_INK = '#1f2430'
_MUTED = '#667085'
_GRIDLINE = '#e4e7ec'
# Okabe and Ito's colours, which suit every kind of colour vision.
_COLORS = (
  '#0072b2',
  '#d55e00',
  '#009e73',
  '#cc79a7',
  '#e69f00',
  '#56b4e9',
  '#7f6000',
)


def draw(groups: Sequence[curves.SeedGroup]) -> mpl_figure.Figure:
  """Draws return and throughput (rows) over frames and minutes (columns)."""
  with matplotlib.rc_context({'font.size': 10, 'text.color': _INK}):
    figure = mpl_figure.Figure(figsize=(11, 7), facecolor=_SURFACE)
    backend_agg.FigureCanvasAgg(figure)
    grid = figure.subplots(2, 2, sharex='col', sharey='row')
    for column, (x, x_label) in enumerate((
      ('time/env_frames', columns.TABLE['time/env_frames'].text),
      ('time/elapsed_s', 'wall clock, minutes'),
    )):
      _draw_panel(grid[0, column], groups, x, 'rollout/return', dotted=True)
      _draw_panel(grid[1, column], groups, x, 'time/frames_per_s')
      grid[1, column].set_xlabel(x_label)
    grid[0, 0].set_ylabel(columns.TABLE['rollout/return'].text)
    grid[1, 0].set_ylabel(columns.TABLE['time/frames_per_s'].text)
    grid[1, 0].set_ylim(bottom=0)
    grid[1, 0].xaxis.set_major_formatter(ticker.EngFormatter(sep=''))
    grid[1, 0].yaxis.set_major_formatter(ticker.EngFormatter(sep=''))
    _draw_legend(figure, grid[0, 0])
  return figure


def plot(
  workdirs: Sequence[str | pathlib.Path], out: str | pathlib.Path
) -> None:
  """Draws the curves of `workdirs` to `out` (PNG, PDF or SVG).

  Raises:
    ValueError: see `curves.read_run`; also if `out` cannot be written.
  """
  figure = draw(
    curves.group_runs([curves.read_run(workdir) for workdir in workdirs])
  )
  try:
    figure.savefig(out, dpi=150, facecolor=_SURFACE)
  except (OSError, ValueError) as e:
    # The text of an OSError would repeat the path.
    reason = getattr(e, 'strerror', None) or str(e)
    raise ValueError(
      f'--out={out} cannot be written ({reason}); name another file, such as '
      'plot.png.'
    ) from e


def _draw_panel(
  axes: mpl_axes.Axes,
  groups: Sequence[curves.SeedGroup],
  x: str,
  y: str,
  dotted: bool = False,
) -> None:
  scale = 60.0 if x == 'time/elapsed_s' else 1.0
  for i, group in enumerate(groups):
    color = _COLORS[i % len(_COLORS)]
    _draw_group(axes, group, x, y, scale, color)
    evaluation = curves.band(group, x, 'eval/return') if dotted else None
    if evaluation:
      axes.plot(
        evaluation.x / scale, evaluation.mean, ':', color=color, linewidth=1.6
      )
  axes.margins(x=0.02)
  axes.grid(color=_GRIDLINE, linewidth=0.8)
  axes.set_axisbelow(True)
  axes.tick_params(colors=_MUTED, length=0)
  for side, spine in axes.spines.items():
    spine.set_visible(side == 'bottom')
    spine.set_color(_GRIDLINE)


def _draw_group(
  axes: mpl_axes.Axes,
  group: curves.SeedGroup,
  x: str,
  y: str,
  scale: float,
  color: str,
) -> None:
  label = group.label
  if len(group.runs) == 1:
    x_values, y_values = curves.curve(group.runs[0], x, y)
    axes.plot(x_values / scale, y_values, color=color, lw=1.8, label=label)
    return
  for run in group.runs:
    x_values, y_values = curves.curve(run, x, y)
    axes.plot(x_values / scale, y_values, color=color, lw=0.6, alpha=0.35)
  summary = curves.band(group, x, y)
  if summary is None:
    return
  axes.fill_between(
    summary.x / scale,
    summary.low,
    summary.high,
    color=color,
    alpha=0.18,
    linewidth=0,
  )
  axes.plot(summary.x / scale, summary.mean, color=color, lw=2, label=label)


def _draw_legend(figure: mpl_figure.Figure, axes: mpl_axes.Axes) -> None:
  handles, labels = axes.get_legend_handles_labels()
  longest = max(map(len, labels), default=1)
  columns = max(1, min(len(labels), _LEGEND_CHARACTERS // (longest + 8)))
  rows = -(-len(labels) // columns)
  figure.tight_layout(rect=(0, 0.03, 1, 0.985 - 0.032 * rows))
  figure.legend(
    handles,
    labels,
    loc='upper left',
    bbox_to_anchor=(axes.get_position().x0 - 0.01, 0.99),
    ncols=columns,
    frameon=False,
    borderaxespad=0,
  )
  figure.text(
    0.985,
    0.012,
    'line: training (mean of seeds), band: least to greatest seed, '
    'dotted: evaluation',
    ha='right',
    color=_MUTED,
    fontsize=8,
  )
