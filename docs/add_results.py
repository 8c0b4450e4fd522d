"""Adds runs to results.csv, or replaces their rows.

`python docs/add_results.py runs/a runs/b` takes runs that `seedrl evaluate
--save` has evaluated, and folders above them. The file has a row for each run,
or for several that differ in their seeds:

* `agent`: see `algorithms.name`; also a3c, gorila and hogwild.
* `config`: name of the configuration that `flags` change.
* `seed`: of a single run; `seeds`: how many runs there are.
* `reached`: how many of them have this return.
* `frames`, `return`, `seconds` (wall clock): a number, or a range of runs as
  'low..high'; returns may also be those of each run, with spaces between.
* `error`: standard error over the episodes of a single run.
* `sampled`, `sampled_error`: of sampled actions, if `return` is of greedy ones.
* `episodes`: their number and kind: greedy, training or evaluation.
* `reference`: a return to compare with; `source`, `network` and `protocol` say
  whose it is.
* `commit`: of the newest start; carried over from an earlier page if empty.
* `readme`: the task's name in README.md, if the row is there.
* `remarks`.
"""

import csv
import pathlib
import sys
from collections.abc import Mapping, Sequence

import ml_collections
import numpy as np

from seedrl_jax.lab.plots import algorithms
from seedrl_jax.lab.studies import commands, results
from seedrl_jax.launch import config_flag

_PATH = pathlib.Path(__file__).with_name('results.csv')
# Columns that say which run a row is of.
_RUN = ('agent', 'environment', 'config', 'flags', 'seed')
# Columns that no run knows.
_KEPT = ('reference', 'source', 'network', 'protocol', 'readme', 'remarks')


def add(runs: Sequence[results.Result], path: pathlib.Path) -> None:
  """Adds runs to a file; the references and remarks of a row stay.

  Raises:
    ValueError: if a run has no greedy evaluation, or no configuration has its
      keys.
  """
  known = config_flag.shipped()
  new_rows = [_row(run, known) for run in runs]
  with path.open(newline='') as file:
    reader = csv.DictReader(file)
    header, rows = list(reader.fieldnames or ()), list(reader)
  # The first of equal ones.
  places = {_key(row): i for i, row in reversed([*enumerate(rows)])}
  for new in new_rows:
    place = places.get(_key(new))
    if place is None:
      rows.append(new)
    else:
      kept = {name: rows[place][name] for name in _KEPT}
      rows[place] = new | kept
  with path.open('w', newline='') as file:
    writer = csv.DictWriter(file, header, restval='', lineterminator='\n')
    writer.writeheader()
    writer.writerows(rows)


def _key(row: Mapping[str, str]) -> tuple[str, ...]:
  return tuple(row[name] for name in _RUN)


def _row(
  run: results.Result, known: Mapping[str, ml_collections.ConfigDict]
) -> dict[str, str]:
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
  sampled, sampled_error = _mean(run.evaluations.get('sampled', ()))
  return {
    'agent': algorithms.name(run.run.config),
    'environment': run.task,
    'config': name,
    'flags': ' '.join(x for x in flags if not x.startswith('--config.seed=')),
    'seed': str(config.seed),
    'seeds': '1',
    'frames': f'{run.last[results.FRAMES]:.0f}',
    'return': greedy,
    'error': error,
    'sampled': sampled,
    'sampled_error': sampled_error,
    'episodes': f'{len(run.evaluations["greedy"])} greedy',
    'seconds': f'{run.last[results.SECONDS]:.0f}',
    'commit': results.read_versions(folder).get('commit') or '',
  }


def _mean(returns: Sequence[float]) -> tuple[str, str]:
  """Returns the mean and its standard error, '' if there is none."""
  if not returns:
    return '', ''
  digits = 1 if abs(np.mean(returns)) >= 10 else 2
  error = ''
  if len(returns) > 1:
    error = f'{np.std(returns, ddof=1) / len(returns) ** 0.5:.{digits}f}'
  return f'{np.mean(returns):.{digits}f}', error


if __name__ == '__main__':
  add(results.gather(sys.argv[1:]), _PATH)
