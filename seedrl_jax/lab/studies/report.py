"""Writes a report on runs: Markdown, figures and raw scores."""

import csv
import math
import pathlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import ml_collections
import numpy as np

from seedrl_jax.lab import tables
from seedrl_jax.lab.studies import commands, figures, results, statistics
from seedrl_jax.runtime import progress
from seedrl_jax.runtime import report as run_report

_Known = Mapping[str, ml_collections.ConfigDict]
_Named = Mapping[str, statistics.Statistic]

_STATISTICS: _Named = {
  'mean': statistics.mean,
  'median': statistics.median,
  'IQM': statistics.iqm,
}
# It means something only if the score of 1 does not depend on these runs.
_GAP: _Named = {'optimality gap': statistics.optimality_gap}
_KINDS = {
  results.EVALUATION: (
    f'evaluation return: the mean of the last {run_report.EVAL_WINDOW} '
    'episodes of the evaluation environments'
  ),
  results.TRAINING: (
    f'training return: the mean of the last {run_report.WINDOW} training '
    'episodes, which explore, as not all runs have evaluation environments'
  ),
}
_ABOUT = (
  'Brackets: 95 % intervals of a percentile bootstrap, stratified by task '
  f'({statistics.REPS:,} resamples); none for a single run. IQM: mean of the '
  'middle half of the runs; of fewer than four it is their mean.'
)
# With fewer runs, percentile intervals cover clearly less than 95 %.
_FEW = 5
_CAPTIONS = {
  'profiles.png': 'Performance profiles: the share of runs above each score',
  'frames.png': 'Sample efficiency: interquartile mean with 95 % intervals',
  'wall_clock.png': 'The same over wall clock',
}
# Columns of scores.csv in addition to the score.
_RAW = [results.EVALUATION, results.TRAINING, results.FRAMES, results.SECONDS]


def write(folders: Sequence[str], out: pathlib.Path, known: _Known) -> None:
  """Writes report.md, scores.csv and figures on the runs below `folders`.

  Args:
    out: folder to write to; made if necessary.
    known: configurations by the names that seedrl train takes.

  Raises:
    ValueError: if there is no finished run, or a file is damaged.
    OSError: if a file cannot be written.
  """
  study = results.Study(results.gather(folders))
  if not study.counted:
    first = study.results[0]
    raise ValueError(
      f'no run of {len(study.results)} has finished with a score '
      f'({first.run.name}: {_status(first, study)}); go on with them first.'
    )
  out.mkdir(parents=True, exist_ok=True)
  images = figures.draw_all(study)
  for name, figure in images.items():
    figure.savefig(out / name, dpi=150)
  _write_csv(study, out / 'scores.csv')
  lines = [*_head(study), *_tables(study)]
  for name, caption in _CAPTIONS.items():
    if name in images:
      lines += ['', f'## {caption}', '', f'![{caption}]({name})']
  lines += [*_commands(study, known), *_versions(study)]
  (out / 'report.md').write_text('\n'.join(lines) + '\n')


def _status(result: results.Result, study: results.Study) -> str:
  if result.status == results.FINISHED and not study.counts(result):
    return f'finished, but without a finite {study.column}'
  return result.status


def _head(study: results.Study) -> Iterator[str]:
  yield from ('# Report', '')
  yield (
    f'Runs: {len(study.results)}, of them finished: {len(study.counted)}. '
    f'Algorithms: {len(study.algorithms)}. Tasks: {len(study.tasks)}. A score '
    f'is the final {_KINDS[study.column]}. {_ABOUT}'
  )
  sizes = {*Counter((r.algorithm, r.task) for r in study.counted).values()}
  if min(sizes) < _FEW:
    yield ''
    yield (
      f'**Few seeds:** some results are of {min(sizes)}. Intervals of fewer '
      f'than {_FEW} runs are too narrow.'
    )
  if len(sizes) > 1 and len(study.tasks) > 1:
    yield ''
    yield (
      '**Unequal numbers of runs:** in the IQM and the profiles a task with '
      'more runs counts for more.'
    )
  if names := figures.without_curve(study):
    yield ''
    yield (
      f'**No curve:** {", ".join(names)}. These runs share too few rows '
      'with a return; a smaller `--config.log.every_seconds` writes more.'
    )
  if left_out := [r for r in study.results if not study.counts(r)]:
    yield from ('', 'Left out, as they have no final score:', '')
    yield from (f'* `{r.run.name}`: {_status(r, study)}' for r in left_out)


def _tables(study: results.Study) -> Iterator[str]:
  """Yields a table of each task's scores, and one of all tasks'."""
  yield from ('', '## Final scores of each task', '')
  yield (
    'Frames and wall clock are medians. *Greedy* and *sampled* are returns by '
    '`seedrl evaluate --save`: means over seeds ± standard error, of one seed '
    'over episodes.'
  )
  yield ''
  yield from tables.lines(
    _result_row(study, task, algorithm)
    for task in study.tasks
    for algorithm in study.algorithms
    if study.runs(algorithm, task)
  )
  scale, tasks = study.scale, study.common_tasks
  if not scale.text or not tasks:
    return
  named = {**_STATISTICS, **(_GAP if scale.is_fixed else {})}
  yield from ('', f'## Final scores over {len(tasks)} tasks', '')
  yield f'{scale.name.capitalize()}: {scale.text}'
  yield 'Mean and median are over the means of the tasks.'
  if missing := [task for task in study.tasks if task not in tasks]:
    yield f'Left out, as not every algorithm has runs: {", ".join(missing)}.'
  yield ''
  yield from tables.lines(
    {'algorithm': a} | _cells(study.scaled(a), named) for a in study.algorithms
  )


def _result_row(study: results.Study, task: str, algorithm: str) -> tables.Row:
  """Returns what an algorithm's runs on a task had and reached."""
  runs = study.runs(algorithm, task)
  network = runs[0].run.config['network']
  lstm = f', LSTM {network["lstm_size"]}' if network['lstm_size'] else ''
  frames, seconds = (
    float(np.median([run.last[name] for run in runs]))
    for name in (results.FRAMES, results.SECONDS)
  )
  row = {
    'task': task,
    'algorithm': algorithm,
    'network': network['torso'] + lstm,
    'frames': progress.format_count(frames),
    'wall clock': tables.duration(seconds),
    **_cells([study.scores(algorithm, task)], _STATISTICS),
  }
  for actions in ('greedy', 'sampled'):
    returns = [run.evaluations.get(actions, [math.nan]) for run in runs]
    means = [float(np.mean(x)) for x in returns]
    row[actions] = _mean_text(means if len(runs) > 1 else returns[0])
  return row


def _mean_text(values: Sequence[float]) -> str:
  """Returns mean ± standard error; – if a value is missing."""
  if not np.all(np.isfinite(values)):
    return '–'
  error = np.std(values, ddof=1) / math.sqrt(len(values)) if values[1:] else 0.0
  return f'{np.mean(values):,.2f} ± {error:,.2f}'


def _cells(scores: statistics.Scores, named: _Named) -> dict[str, str]:
  """Returns the number of runs and each statistic with its interval."""
  cells = {'runs': str(sum(map(len, scores)))}
  for name, statistic in named.items():
    cells[name] = _number(statistic(scores))
    if statistics.has_interval(scores):
      resamples = statistics.resample(scores)
      low, high = statistics.interval(statistic(resamples)).tolist()
      cells[name] += f' [{_number(low)}, {_number(high)}]'
  return cells


def _number(value: float | np.ndarray) -> str:
  size = abs(float(value))
  return f'{value:,.{1 if size >= 100 else 2 if size >= 10 else 3}f}'


def _commands(study: results.Study, known: _Known) -> Iterator[str]:
  yield from ('', '## Commands', '')
  yield (
    'The shortest commands that repeat these configurations, in folders of '
    'their own. Runs are reproducible only with `--config.deterministic`.'
  )
  yield from ('', '```bash')
  # A run of several tasks has several results.
  for run in {result.run.name: result.run for result in study.results}.values():
    config = ml_collections.ConfigDict(run.config)
    name = pathlib.Path(run.name).name
    command = commands.shortest(config, known, f'runs/again/{name}')
    yield command or f'# {name}: its keys are not those of a file in configs/'
  yield '```'


def _versions(study: results.Study) -> Iterator[str]:
  yield from ('', '## Versions', '', 'Of the latest start of each run.', '')
  newest = [
    results.read_versions(name)
    for name in dict.fromkeys(result.run.name for result in study.results)
  ]
  names = dict.fromkeys(
    name for row in newest for name in row if name != 'time'
  )
  rows = Counter(tuple(str(row.get(name)) for name in names) for row in newest)
  yield from tables.lines(
    {'runs': str(count), **dict(zip(names, row, strict=True))}
    for row, count in rows.items()
  )


def _write_csv(study: results.Study, path: pathlib.Path) -> None:
  header = ['algorithm', 'task', 'seed', 'status', 'score', 'scaled_score']
  with path.open('w', newline='') as file:
    writer = csv.writer(file)
    writer.writerow([*header, *_RAW, 'workdir'])
    for result in study.results:
      scores = np.array([study.score(result)] * study.counts(result))
      scaled = study.scale(result.task, scores) if scores.size else ['']
      writer.writerow([
        result.algorithm,
        result.task,
        result.run.config['seed'],
        _status(result, study),
        *(scores if scores.size else ['']),
        *scaled,
        *(result.last.get(name, '') for name in _RAW),
        result.run.name,
      ])
