"""The file of results behind the tables of docs/, a row for each run."""

import csv
import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import ml_collections
import numpy as np

from seedrl_jax.lab.plots import algorithms
from seedrl_jax.lab.studies import commands, results
from seedrl_jax.runtime import workdir as workdir_lib


class Record(NamedTuple):
  """What a run, or several that differ in their seeds, reached; all text.

  Frames, returns and seconds are a number, or a range of runs as 'low..high';
  returns may also be those of each run, with spaces between.

  Attributes:
    agent: see `algorithms.name`; also a3c, gorila and hogwild.
    config: name of the configuration that `flags` change.
    seed: of a single run.
    seeds: how many runs there are.
    reached: how many of them have this return.
    error: standard error over the episodes of a single run.
    sampled: return of sampled actions, if `return_` is of greedy ones.
    episodes: their number and kind: greedy, training or evaluation.
    seconds: wall clock.
    reference: a return to compare with; the next three say whose it is.
    commit: of the newest start; carried over from an earlier page if empty.
    readme: the task's name in README.md, if the row is there.
  """

  agent: str
  environment: str
  config: str
  flags: str
  seed: str
  seeds: str
  reached: str
  frames: str
  return_: str
  error: str
  sampled: str
  sampled_error: str
  episodes: str
  seconds: str
  reference: str = ''
  source: str = ''
  network: str = ''
  protocol: str = ''
  commit: str = ''
  readme: str = ''
  remarks: str = ''


# Columns that no run knows.
_KEPT = ('reference', 'source', 'network', 'protocol', 'readme', 'remarks')
_HEADER = [name.rstrip('_') for name in Record._fields]


def read(path: pathlib.Path) -> list[Record]:
  """Reads a file of results; raises ValueError if it is another file."""
  with path.open(newline='') as file:
    header, *rows = [*csv.reader(file)] or [[]]
  if header != _HEADER or any(len(row) != len(header) for row in rows):
    raise ValueError(f'{path} is damaged, or no file of results.')
  return [Record(*row) for row in rows]


def update(
  path: pathlib.Path,
  runs: Sequence[results.Result],
  known: Mapping[str, ml_collections.ConfigDict],
) -> None:
  """Adds the runs to a file, or replaces their rows.

  The references and remarks of a row stay.

  Raises:
    ValueError: if a run has no greedy evaluation, or is not one of `known`.
  """
  records = read(path)
  # All columns up to the seed say which run it is.
  places: dict[tuple[str, ...], int] = {}
  for i, record in enumerate(records):
    places.setdefault(record[:5], i)
  for new in [_record(run, known) for run in runs]:
    place = places.get(new[:5])
    if place is None:
      records.append(new)
      continue
    old = records[place]
    kept = {name: getattr(old, name) for name in _KEPT}
    records[place] = new._replace(**kept)
  write(path, records)


def write(path: pathlib.Path, records: Sequence[Record]) -> None:
  """Writes a file of results."""
  with path.open('w', newline='') as file:
    writer = csv.writer(file, lineterminator='\n')
    writer.writerow(_HEADER)
    writer.writerows(records)


def _record(
  run: results.Result, known: Mapping[str, ml_collections.ConfigDict]
) -> Record:
  folder = run.run.name
  config = ml_collections.ConfigDict(run.run.config)
  nearest = commands.nearest(config, known)
  if nearest is None:
    raise ValueError(f'{folder}: its keys are not those of a file in configs/.')
  if 'greedy' not in run.evaluations:
    raise ValueError(
      f'{folder} is not finished, or has no greedy evaluation; run '
      f'`seedrl evaluate {folder} --episodes=30 --save`.'
    )
  name, flags = nearest
  greedy, error = _mean(run.evaluations['greedy'])
  sampled = run.evaluations.get('sampled')
  return Record(
    algorithms.name(run.run.config),
    run.task,
    name,
    ' '.join(x for x in flags if not x.startswith('--config.seed=')),
    str(config.seed),
    '1',
    '',
    f'{run.last[results.FRAMES]:.0f}',
    greedy,
    error,
    *(_mean(sampled) if sampled else ('', '')),
    f'{len(run.evaluations["greedy"])} greedy',
    f'{run.last[results.SECONDS]:.0f}',
    commit=workdir_lib.Workdir(folder).read_versions().get('commit') or '',
  )


def _mean(returns: Sequence[float]) -> tuple[str, str]:
  """Returns the mean and its standard error, '' of a single return."""
  digits = 1 if abs(np.mean(returns)) >= 10 else 2
  error = ''
  if len(returns) > 1:
    error = f'{np.std(returns, ddof=1) / len(returns) ** 0.5:.{digits}f}'
  return f'{np.mean(returns):.{digits}f}', error
