"""Concurrent systems side by side: runs to a target return, and their table.

After "Analysis of Concurrent RL Algorithms" (2019), which counted the episodes
of one process. Here frames are those of all workers.
"""

import csv
import itertools
import math
import pathlib
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import ml_collections
from matplotlib import figure as mpl_figure

from seedrl_jax.lab import tables
from seedrl_jax.lab.plots import algorithms, curves, plotting
from seedrl_jax.lab.studies import results, sweeping
from seedrl_jax.runtime import settings

# Workers of the estimate for machines with a core for each.
ESTIMATED = (4, 8, 16, 32)


class System(NamedTuple):
  """A system of the study, with the settings of its runs.

  Attributes:
    program: 'train' or 'train_async'.
    config: name of the configuration.
    values: of its keys.
    workers: numbers of workers to run it with; (1,) for `train`.
    scaled: keys whose values are multiplied by the number of workers.
  """

  program: str
  config: str
  values: Mapping[str, Any] = {}
  workers: Sequence[int] = (1,)
  scaled: Sequence[str] = ()

  def values_with(
    self, workers: int, config: ml_collections.ConfigDict
  ) -> dict[str, Any]:
    """Returns the values of keys of `config` for a number of workers."""
    leaves = dict(settings.leaves(config))
    return {
      **self.values,
      **{key: leaves[key] * workers for key in self.scaled},
      'asynchronous.workers': workers,
    }


_ALL = (1, 2, 4, 8)
SYSTEMS: dict[str, System] = {
  'DQN with Hogwild!': System('train_async', 'concurrent/dqn', workers=_ALL),
  'DQN with a lock': System(
    'train_async', 'concurrent/dqn', {'asynchronous.share': 'lock'}, (2, 4)
  ),
  # One update takes the mean of the workers' gradients, so there are fewer.
  'Synchronous DQN': System(
    'train_async',
    'concurrent/dqn',
    {'asynchronous.share': 'sync'},
    (2, 4),
    ('optimizer.learning_rate', 'loss.target_update_rate'),
  ),
  'DQN with a server': System(
    'train_async', 'concurrent/dqn', {'asynchronous.share': 'server'}, (2, 4)
  ),
  'A3C': System('train_async', 'concurrent/a3c', workers=_ALL),
  'Dyna-Q': System('train_async', 'concurrent/dyna_q'),
  # One replay for all, so that it is as large as theirs together.
  'Dyna-Q with a model worker': System(
    'train_async',
    'concurrent/dyna_q',
    {'asynchronous.model_workers': 1, 'replay.backend': 'reverb'},
    (2, 4, 8),
    ('replay.max_size',),
  ),
  'Central DQN': System('train', 'concurrent/dqn'),
  'Central V-trace': System('train', 'concurrent/vtrace'),
  'Central R2D2': System('train', 'concurrent/r2d2'),
}


class Run(NamedTuple):
  """A run that has ended; `solved` if it reached the target."""

  system: str
  workers: int
  seed: int
  solved: bool
  frames: float
  episodes: float
  seconds: float
  cpu_seconds: float
  updates: float
  staleness: float


class Row(NamedTuple):
  """The runs of a system with a number of workers.

  Attributes:
    median: of each figure of the runs that reached the target, nan if none did.
  """

  system: str
  workers: int
  runs: int
  solved: int
  median: Run


def measure(system: str, workers: int, seed: int, trial: sweeping.Trial) -> Run:
  """Returns what a finished trial took."""
  columns = curves.read_run(trial.workdir.path).columns
  last = {name: float(values[-1]) for name, values in columns.items()}
  mean = results.read_summary(trial.workdir).get('mean_return_100') or 0.0
  target = trial.config.target_return
  cpu = ('time/cpu_s', 'asynchronous/shards_cpu_s')
  return Run(
    system,
    workers,
    seed,
    target is not None and mean >= target,
    last['time/env_frames'],
    last.get('rollout/episodes', 0.0),
    round(last['time/elapsed_s'], 1),
    round(sum(last.get(name, 0.0) for name in cpu), 1),
    last['time/updates'],
    round(last.get('asynchronous/staleness_mean', 0.0), 3),
  )


def read(path: str) -> list[Run]:
  """Reads the runs of a study.csv.

  Raises:
    ValueError: if it is another file, or damaged.
  """
  with open(path, newline='') as file:
    reader = csv.DictReader(file)
    if tuple(reader.fieldnames or ()) != Run._fields:
      raise ValueError(f'{path} is not a study.csv of this command.')
    try:
      return [_run(*row.values()) for row in reader]
    except (TypeError, ValueError) as e:
      line = reader.line_num
      raise ValueError(f'{path} is damaged in line {line} ({e}).') from e


def _run(
  system: str, workers: str, seed: str, solved: str, *figures: str
) -> Run:
  if system not in SYSTEMS:
    raise ValueError(f'there is no system {system}')
  is_solved = solved == 'True'
  return Run(system, int(workers), int(seed), is_solved, *map(float, figures))


def medians(runs: Iterable[Run]) -> list[Row]:
  """Returns the rows of runs, in the order of the systems."""
  groups: dict[tuple[str, int], list[Run]] = {}
  for run in runs:
    groups.setdefault((run.system, run.workers), []).append(run)
  order = list(SYSTEMS)
  keys = sorted(groups, key=lambda key: (order.index(key[0]), key[1]))
  return [_row(groups[key]) for key in keys]


def _row(runs: Sequence[Run]) -> Row:
  system, workers, *_ = runs[0]
  solved = [run for run in runs if run.solved]
  figures = zip(*(run[4:] for run in solved), strict=True)
  values = [*map(statistics.median, figures)] or [math.nan] * 6
  median = Run(system, workers, 0, bool(solved), *values)
  return Row(system, workers, len(runs), len(solved), median)


def estimates(rows: Sequence[Row], system: str) -> dict[int, float]:
  """Returns seconds to the target with a core for each worker.

  Assumes that a frame takes a worker the processor time that it takes one
  alone, that workers do not slow each other down, and that more workers than
  were run need the frames of the most that were. Systems that did not run both
  with one worker and with more have none.
  """
  medians_by_workers = {
    row.workers: row.median
    for row in rows
    if row.system == system and row.solved
  }
  alone, most = medians_by_workers.get(1), max(medians_by_workers, default=0)
  if alone is None or most == 1:
    return {}
  per_frame = alone.cpu_seconds / alone.frames
  return {
    count: per_frame * medians_by_workers[min(count, most)].frames / count
    for count in ESTIMATED
    if count > most or count in medians_by_workers
  }


def report(rows: Sequence[Row]) -> Iterator[str]:
  """Yields the lines of the Markdown tables."""
  alone = {_run_by(row): row.median for row in rows if row.workers == 1}
  yield from tables.lines(_cells(row, alone.get(_run_by(row))) for row in rows)
  by_system = {row.system: estimates(rows, row.system) for row in rows}
  estimated = {name: seconds for name, seconds in by_system.items() if seconds}
  if estimated:
    yield ''
  yield from tables.lines(
    {'estimate': name}
    | {f'{n} cores': _figure(seconds.get(n), ' s') for n in ESTIMATED}
    for name, seconds in estimated.items()
  )


def _cells(row: Row, alone: Run | None) -> tables.Row:
  """Returns the cells of a row; `alone` is with one worker."""
  median = row.median
  speed_up = alone.seconds / median.seconds if alone else None
  return {
    'system': row.system,
    'workers': str(row.workers),
    'solved': f'{row.solved} of {row.runs}',
    'frames': _figure(median.frames),
    'episodes': _figure(median.episodes),
    'wall clock': _figure(median.seconds, ' s'),
    'processor time': _figure(median.cpu_seconds, ' s'),
    's/episode': _figure(median.seconds / max(median.episodes, 1.0), digits=3),
    'updates/s': _figure(median.updates / max(median.seconds, 1e-9)),
    'speed-up': _figure(speed_up, digits=2),
    'staleness': _figure(median.staleness, digits=2),
  }


def _figure(value: float | None, unit: str = '', digits: int = 0) -> str:
  if value is None or math.isnan(value):
    return '–'
  return f'{value:,.{digits}f}{unit}'


def _run_by(row: Row) -> tuple[str, str]:
  """Returns program and configuration: they share the run of one worker."""
  system = SYSTEMS[row.system]
  return system.program, system.config


def draw(rows: Sequence[Row]) -> mpl_figure.Figure:
  """Draws frames, wall clock and processor time against the workers."""
  figure = mpl_figure.Figure(figsize=(12, 3.6), layout='constrained')
  panels = {
    'frames': 'frames to the target',
    'seconds': 'wall clock (s)',
    'cpu_seconds': 'processor time (s)',
  }
  names = [system.config.rpartition('/')[2] for system in SYSTEMS.values()]
  colors = dict(zip(SYSTEMS, algorithms.shades(names), strict=True))
  markers = dict(zip(SYSTEMS, itertools.cycle('os^Dv'), strict=False))
  solved = [row for row in rows if row.solved]
  counts = sorted({row.workers for row in solved})
  for axes, (name, title) in zip(
    figure.subplots(1, len(panels)), panels.items(), strict=True
  ):
    for system in dict.fromkeys(row.system for row in solved):
      points = [
        (row.workers, getattr(row.median, name))
        for row in solved
        if row.system == system
      ]
      line = zip(*points, strict=True)
      marker = markers[system]
      axes.plot(*line, f'{marker}-', color=colors[system], label=system)
    axes.set_xscale('log', base=2)
    axes.set_xticks(counts, labels=map(str, counts))
    axes.set_yscale('log')
    axes.yaxis.set_major_formatter(plotting.count_text)
    axes.yaxis.set_minor_formatter(plotting.count_text)
    axes.set_xlabel('workers')
    axes.set_title(title)
  figure.legend(
    *figure.axes[0].get_legend_handles_labels(), loc='outside right upper'
  )
  return figure


def write(runs: Sequence[Run], folder: pathlib.Path) -> None:
  """Writes the tables, the figure and the runs as CSV."""
  folder.mkdir(parents=True, exist_ok=True)
  rows = medians(runs)
  (folder / 'study.md').write_text('\n'.join(report(rows)) + '\n')
  draw(rows).savefig(folder / 'study.png', dpi=150)
  with (folder / 'study.csv').open('w', newline='') as file:
    writer = csv.writer(file)
    writer.writerow(Run._fields)
    writer.writerows(runs)
