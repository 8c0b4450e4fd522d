"""Reads the curves of runs, groups their seeds and averages them."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from seedrl_jax.lab.plots import algorithms
from seedrl_jax.runtime import report, settings
from seedrl_jax.runtime import workdir as workdir_lib
from seedrl_jax.runtime.writers import text_logs

# Points that a group's seeds are interpolated to.
_GRID_SIZE = 400
# Larger numbers count as missing.
LARGEST = 1e100
# Keys in which the runs of a group may differ.
_SAME = ('seed', 'log')
# Columns that others are drawn over.
FRAMES, UPDATES, SECONDS = report.FRAMES, report.UPDATES, 'time/elapsed_s'


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
      f'{workdir} has no metrics.csv; name a run that has trained.'
    )
  try:
    header, rows = text_logs.read_csv(path)
  except ValueError as e:
    raise ValueError(f'{path} is damaged ({e}).') from e
  if not rows:
    raise ValueError(f'{path} has no complete row yet; try again later.')
  values = np.array([[text_logs.number(cell) for cell in row] for row in rows])
  # Axes could not show them.
  values[np.abs(values) > LARGEST] = np.nan
  directory = workdir_lib.Workdir(workdir)
  config = {}
  if directory.config_json.is_file():
    config = directory.read_config().to_dict()
  columns = dict(zip(header, values.T, strict=True))
  return RunCurves(workdir.resolve().name, config, columns)


def smoothed(run: RunCurves, size: int) -> RunCurves:
  """Returns a run with moving means over `size` reports in place of numbers.

  The reports are half before and half after each one, and fewer at both ends.
  """
  columns = {
    name: values
    if name in (FRAMES, UPDATES, SECONDS)
    else _moving_mean(values, size)
    for name, values in run.columns.items()
  }
  return run._replace(columns=columns)


def _moving_mean(values: np.ndarray, size: int) -> np.ndarray:
  """Returns float64 `[N]` means of what is finite; the rest stays as it is."""
  valid = np.isfinite(values)
  sums = np.append(0.0, np.cumsum(values[valid]))
  i = np.arange(len(sums) - 1)
  begin = np.maximum(i - size // 2, 0)
  end = np.minimum(i + (size + 1) // 2, len(i))
  means = values.copy()
  means[valid] = (sums[end] - sums[begin]) / (end - begin)
  return means


def group_runs(
  runs: Sequence[RunCurves], counted: bool = True
) -> list[SeedGroup]:
  """Groups the seeds of one configuration, in order of appearance.

  What a run logs makes no difference. A run without `config.json` is a group of
  its own. Labels name the algorithm, the environment and what else differs; if
  `counted`, the number of seeds, too.
  """
  members: dict[str, list[RunCurves]] = {}
  for i, run in enumerate(runs):
    config = _compared(run)
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


def _compared(run: RunCurves) -> dict[str, Any]:
  return {k: v for k, v in run.config.items() if k not in _SAME}


def _labels(runs: Sequence[RunCurves]) -> list[str]:
  """Returns algorithm and environment, and what tells runs with both apart."""
  flat = [dict(settings.leaves(_compared(run))) for run in runs]
  bases = [
    (algorithms.name(run.config), str(config.get('env.id', '')))
    for run, config in zip(runs, flat, strict=True)
  ]
  labels = []
  for run, config, base in zip(runs, flat, bases, strict=True):
    others = [c for c, b in zip(flat, bases, strict=True) if b == base]
    differing = [
      # A missing key differs from None.
      key
      for key in sorted(config)
      if len({repr(other.get(key, '')) for other in others}) > 1
    ]
    parts = [part for part in base if part]
    parts += [f'{key}={config[key]}' for key in differing[:3]]
    labels.append(', '.join(parts) or run.name)
  # If three keys do not tell two apart, their folders do.
  return [
    f'{label}, {run.name}' if labels.count(label) > 1 else label
    for label, run in zip(labels, runs, strict=True)
  ]


def curve(run: RunCurves, x: str, y: str) -> tuple[np.ndarray, np.ndarray]:
  """Returns `[N]` points of column `y` over column `x`, none of them nan."""
  if not {x, y} <= run.columns.keys():
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
