"""Draws the curves of runs; needs no display and no JAX."""

import itertools
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
import matplotlib.style
import numpy as np
from matplotlib import axes as mpl_axes
from matplotlib import figure as mpl_figure
from matplotlib import ticker

from seedrl_jax.runtime import progress, settings
from seedrl_jax.runtime import workdir as workdir_lib

# Points that a group's seeds are interpolated to.
_GRID_SIZE = 400
# Width of the legend.
_LEGEND_CHARACTERS = 130
# Colours that suit every kind of colour vision.
COLORS = matplotlib.style.library['tableau-colorblind10'][
  'axes.prop_cycle'
].by_key()['color']
LOOKS: Any = {
  'axes.grid': True,
  'axes.axisbelow': True,
  'axes.xmargin': 0.02,
  'axes.spines.left': False,
  'axes.spines.right': False,
  'axes.spines.top': False,
  'grid.color': '#e4e7ec',
}
_CAPTION = (
  'line: training (mean of seeds), band: least to greatest seed, dotted: '
  'evaluation'
)


class RunCurves(NamedTuple):
  """The curves of one work directory.

  Attributes:
    name: the directory's name without its parents.
    config: contents of `config.json`; empty if there is none.
    columns: float64 `[N]` by column; nan for an empty cell.
  """

  name: str
  config: Mapping[str, Any]
  columns: Mapping[str, np.ndarray]


class SeedGroup(NamedTuple):
  """Runs whose configurations differ only in the seed."""

  label: str
  runs: Sequence[RunCurves]


class Band(NamedTuple):
  """Mean and range over a group's runs on one axis, all float64 `[N]`."""

  x: np.ndarray
  mean: np.ndarray
  low: np.ndarray
  high: np.ndarray


def read_run(workdir: str | pathlib.Path) -> RunCurves:
  """Reads a work directory.

  Raises:
    ValueError: if `metrics.csv` is missing or without rows, or a file is
      damaged.
  """
  workdir = pathlib.Path(workdir)
  path = workdir / 'metrics.csv'
  if not path.is_file():
    raise ValueError(
      f'{workdir} has no metrics.csv; name the --workdir of a run.'
    )
  try:
    header, rows = progress.read_csv(path)
  except ValueError as e:
    raise ValueError(f'{path} is damaged ({e}).') from e
  if not rows:
    raise ValueError(f'{path} has no complete row yet; try again later.')
  values = np.array([[progress.number(cell) for cell in row] for row in rows])
  directory = workdir_lib.Workdir(workdir)
  config = {}
  if directory.config_json.is_file():
    config = directory.read_config().to_dict()
  columns = dict(zip(header, values.T, strict=True))
  return RunCurves(workdir.resolve().name, config, columns)


def group_runs(
  runs: Sequence[RunCurves], counted: bool = True
) -> list[SeedGroup]:
  """Groups the seeds of one configuration, in order of appearance.

  A run without `config.json` is a group of its own. Labels name the agent, the
  environment and what differs between groups; if `counted`, the number of
  seeds, too.
  """
  members: dict[str, list[RunCurves]] = {}
  for i, run in enumerate(runs):
    config = {k: v for k, v in run.config.items() if k != 'seed'}
    key = json.dumps(config, sort_keys=True) if config else f'no config {i}'
    members.setdefault(key, []).append(run)
  groups = list(members.values())
  labels = _labels([group[0] for group in groups])
  return [
    SeedGroup(
      f'{label} ({len(group)} seeds)' if counted and len(group) > 1 else label,
      group,
    )
    for label, group in zip(labels, groups, strict=True)
  ]


def _labels(runs: Sequence[RunCurves]) -> list[str]:
  flat = [dict(settings.leaves(run.config)) for run in runs]
  keys = sorted({key for config in flat for key in config} - {'seed'})
  # A missing key differs from None.
  differing = [
    key for key in keys if len({repr(c.get(key, '')) for c in flat if c}) > 1
  ]
  labels = []
  for run, config in zip(runs, flat, strict=True):
    parts = [str(config[k]) for k in ('agent', 'env.id') if k in config]
    own = [k for k in differing if k not in ('agent', 'env.id') and k in config]
    parts += [f'{key}={config[key]}' for key in own[:3]]
    labels.append(', '.join(parts) or run.name)
  # If three keys do not tell two apart, their folders do.
  return [
    f'{label}, {run.name}' if labels.count(label) > 1 else label
    for label, run in zip(labels, runs, strict=True)
  ]


def curve(run: RunCurves, x: str, y: str) -> tuple[np.ndarray, np.ndarray]:
  """Returns `[N]` points of column `y` over column `x`, none of them nan."""
  if y not in run.columns:
    return np.empty(0), np.empty(0)
  x_values, y_values = run.columns[x], run.columns[y]
  valid = np.isfinite(x_values) & np.isfinite(y_values)
  return x_values[valid], y_values[valid]


def band(group: SeedGroup, x: str, y: str) -> Band | None:
  """Returns column `y` over a group's runs; see `shared`."""
  common = shared(group.runs, x, y)
  if common is None:
    return None
  grid, values = common
  return Band(grid, values.mean(0), values.min(0), values.max(0))


def shared(
  runs: Sequence[RunCurves], x: str, y: str, size: int = _GRID_SIZE
) -> tuple[np.ndarray, np.ndarray] | None:
  """Returns `[size]` values of `x` and `[R, size]` of `y`; `x` must increase.

  They cover the part of the axis that all runs with a curve share, as a mean
  would jump at the end of each; None if they share nothing.
  """
  curves = [points for run in runs if (points := curve(run, x, y))[0].size]
  if not curves:
    return None
  start = max(points[0][0] for points in curves)
  end = min(points[0][-1] for points in curves)
  if end <= start:
    return None
  grid = np.linspace(start, end, size)
  return grid, np.stack([np.interp(grid, *points) for points in curves])


def plot(
  workdirs: Sequence[str | pathlib.Path], out: str | pathlib.Path
) -> None:
  """Draws the curves of `workdirs` to `out` (PNG, PDF or SVG).

  Raises:
    ValueError: see `read_run`; also if `out` is of another format.
    OSError: if `out` cannot be written.
  """
  figure = draw(group_runs([read_run(workdir) for workdir in workdirs]))
  figure.savefig(out, dpi=150)


def draw(groups: Sequence[SeedGroup]) -> mpl_figure.Figure:
  """Draws return and throughput (rows) over frames and minutes (columns)."""
  with matplotlib.rc_context(LOOKS):
    figure = mpl_figure.Figure(figsize=(11, 7), layout='constrained')
    grid = figure.subplots(2, 2, sharex='col', sharey='row')
    for column, (x, x_label) in enumerate((
      ('time/env_frames', 'environment frames'),
      ('time/elapsed_s', 'wall clock, minutes'),
    )):
      for group, color in zip(groups, itertools.cycle(COLORS), strict=False):
        _draw_group(grid[0, column], group, x, 'rollout/return', color)
        _draw_group(grid[1, column], group, x, 'time/frames_per_s', color)
        if evaluation := band(group, x, 'eval/return'):
          times = evaluation.x / _scale(x)
          grid[0, column].plot(times, evaluation.mean, ':', color=color)
      grid[1, column].set_xlabel(x_label)
    grid[0, 0].set_ylabel('mean return, last 100 episodes')
    grid[1, 0].set_ylabel('frames per second')
    grid[1, 0].set_ylim(bottom=0)
    grid[1, 0].xaxis.set_major_formatter(ticker.EngFormatter(sep=''))
    grid[1, 0].yaxis.set_major_formatter(ticker.EngFormatter(sep=''))
    figure.supxlabel(_CAPTION, x=0.99, ha='right', fontsize=8)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    longest = max(map(len, labels), default=1)
    figure.legend(
      handles,
      labels,
      loc='outside upper left',
      ncols=max(1, _LEGEND_CHARACTERS // (longest + 8)),
      frameon=False,
    )
  return figure


def _scale(x: str) -> float:
  return 60.0 if x == 'time/elapsed_s' else 1.0


def _draw_group(
  axes: mpl_axes.Axes, group: SeedGroup, x: str, y: str, color: str
) -> None:
  """Draws a run as a line, and seeds as faint lines with mean and band."""
  is_alone = len(group.runs) == 1
  for run in group.runs:
    x_values, y_values = curve(run, x, y)
    axes.plot(
      x_values / _scale(x),
      y_values,
      color=color,
      lw=1.8 if is_alone else 0.6,
      alpha=1.0 if is_alone else 0.35,
      label=group.label if is_alone else None,
    )
  summary = None if is_alone else band(group, x, y)
  if summary is not None:
    times = summary.x / _scale(x)
    axes.fill_between(
      times, summary.low, summary.high, color=color, alpha=0.18, linewidth=0
    )
    axes.plot(times, summary.mean, color=color, lw=2, label=group.label)
