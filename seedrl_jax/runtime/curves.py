"""Reads the curves of runs and groups the seeds of one configuration."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from seedrl_jax.runtime import metrics, settings

_REQUIRED = ('time/elapsed_s', 'time/env_frames')
# Points that a group's seeds are interpolated to.
_GRID_SIZE = 400


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
  """Reads a work directory, without rows that a resumed run took back.

  Raises:
    ValueError: if `metrics.csv` is missing, damaged or without usable rows.
  """
  workdir = pathlib.Path(workdir)
  path = workdir / 'metrics.csv'
  if not path.is_file():
    raise ValueError(
      f'{workdir} has no metrics.csv; name the --workdir of a run.'
    )
  try:
    table = _read_table(path)
  except ValueError as e:
    raise ValueError(f'{path} is damaged ({e}).') from e
  missing = [name for name in _REQUIRED if name not in table]
  if missing:
    raise ValueError(f'{path} has no column {" or ".join(missing)}.')
  columns = _without_overtaken(table)
  if not columns['time/elapsed_s'].size:
    raise ValueError(f'{path} has no complete row yet; try again later.')
  config_path = workdir / 'config.json'
  config = json.loads(config_path.read_text()) if config_path.is_file() else {}
  return RunCurves(workdir.resolve().name, config, columns)


def group_runs(runs: Sequence[RunCurves]) -> list[SeedGroup]:
  """Groups the seeds of one configuration, in order of appearance.

  A run without `config.json` is a group of its own. Labels name the agent, the
  environment and what differs between groups.
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
      f'{label} ({len(group)} seeds)' if len(group) > 1 else label, group
    )
    for label, group in zip(labels, groups, strict=True)
  ]


def curve(run: RunCurves, x: str, y: str) -> tuple[np.ndarray, np.ndarray]:
  """Returns `[N]` points of column `y` over column `x`, none of them nan."""
  if y not in run.columns:
    return np.empty(0), np.empty(0)
  x_values, y_values = run.columns[x], run.columns[y]
  valid = np.isfinite(x_values) & np.isfinite(y_values)
  return x_values[valid], y_values[valid]


def band(group: SeedGroup, x: str, y: str) -> Band | None:
  """Returns column `y` over a group's runs; `x` must increase.

  The band covers the part of the axis that all runs share, as the mean would
  jump at the end of each seed; None if they share nothing.
  """
  curves = [points for r in group.runs if (points := curve(r, x, y))[0].size]
  if not curves:
    return None
  start = max(points[0][0] for points in curves)
  end = min(points[0][-1] for points in curves)
  if end <= start:
    return None
  grid = np.linspace(start, end, _GRID_SIZE)
  values = np.stack([np.interp(grid, *points) for points in curves])
  return Band(grid, values.mean(0), values.min(0), values.max(0))


def _read_table(path: pathlib.Path) -> dict[str, np.ndarray]:
  header, rows = metrics.read_csv(path)
  whole = [row for row in rows if len(row) == len(header)]
  return {
    name: np.array([_number(row[i]) for row in whole])
    for i, name in enumerate(header)
  }


def _number(cell: str) -> float:
  try:
    return float(cell)
  except ValueError:
    return np.nan


def _without_overtaken(table: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Drops rows without frames or time, and those with more than a later row."""
  valid = np.all([np.isfinite(table[name]) for name in _REQUIRED], axis=0)
  table = {name: values[valid] for name, values in table.items()}
  frames = table['time/env_frames']
  lowest_later = np.minimum.accumulate(frames[::-1])[::-1]
  return {name: v[frames <= lowest_later] for name, v in table.items()}


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
