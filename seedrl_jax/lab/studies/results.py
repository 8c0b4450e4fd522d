"""What runs have reached, by algorithm and task.

An algorithm is a configuration apart from its task and seed.
"""

import dataclasses
import functools
import glob
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from seedrl_jax.configs import base as base_config
from seedrl_jax.envs import atari
from seedrl_jax.lab.plots import curves
from seedrl_jax.runtime import file_io, settings
from seedrl_jax.runtime import workdir as workdir_lib

FRAMES, SECONDS = curves.FRAMES, curves.SECONDS
EVALUATION, TRAINING = 'eval/return', 'rollout/return'
FINISHED = 'finished'
# The columns of final returns, and their names in summary.json.
_RETURNS = {EVALUATION: 'eval_mean_return', TRAINING: 'mean_return_100'}
# The values that are read from summary.json, if they are there.
_SUMMARY = {
  'status': settings.TEXT,
  'env_frames': settings.number(0),
  **dict.fromkeys(_RETURNS.values(), settings.optional(settings.SCORE)),
}
_TASK_KEYS = ('id', 'factory', 'factory_kwargs')


class Result(NamedTuple):
  """One run.

  Attributes:
    run: its columns and configuration; `name` is the work directory.
    status: 'finished', or how far the run is and why it does not count.
    last: the last value of each column of numbers; nan if unknown.
    task: the environment.
    evaluations: returns by the kind of actions, greedy or sampled.
    algorithm: label of all runs that differ only in task and seed.
  """

  run: curves.RunCurves
  status: str
  last: Mapping[str, float]
  task: str
  evaluations: Mapping[str, Sequence[float]] = {}
  algorithm: str = ''


def find(
  folders: Sequence[str], marker: str = 'config.json'
) -> list[pathlib.Path]:
  """Returns the runs in and below folders, each once.

  Args:
    folders: also patterns, such as 'runs/seed=*'.
    marker: the file by which to know a run.

  Raises:
    ValueError: if a folder has none.
  """
  unique_folders: dict[pathlib.Path, pathlib.Path] = {}
  for folder in folders:
    path = workdir_lib.Workdir(folder).path
    # What exists is no pattern, even if there are brackets in it.
    names = [] if path.exists() else glob.glob(str(path))
    paths = [pathlib.Path(name) for name in names] or [path]
    files = sorted(file for path in paths for file in path.rglob(marker))
    if not files:
      raise ValueError(
        f'{path} holds no run (no {marker} in or below it); name '
        "runs' work directories, or a folder above them."
      )
    for file in files:
      unique_folders.setdefault(file.parent.resolve(), file.parent)
  return list(unique_folders.values())


def gather(folders: Sequence[str]) -> list[Result]:
  """Reads the runs in and below folders; raises ValueError if it cannot.

  A run of several tasks has a result for each.
  """
  results = [
    result
    for path in find(folders)
    for result in _of_tasks(workdir_lib.Workdir(path))
  ]
  bare = [r.run._replace(config=_without_task(r.run.config)) for r in results]
  labels = {
    run.name: group.label
    for group in curves.group_runs(bare, counted=False)
    for run in group.runs
  }
  return [r._replace(algorithm=labels[r.run.name]) for r in results]


def _of_tasks(workdir: workdir_lib.Workdir) -> list[Result]:
  """Returns a run's results: one for each task, with that task's returns."""
  result = _read(workdir)
  columns, results = result.run.columns, []
  for name in columns:
    if not name.startswith(f'{TRAINING}/'):
      continue
    task = name.removeprefix(f'{TRAINING}/')
    task_columns = {x: f'{x}/{task}' for x in (TRAINING, EVALUATION)}
    run = result.run._replace(
      columns={**columns, **{x: columns[y] for x, y in task_columns.items()}}
    )
    last = {
      **result.last,
      **{x: result.last[y] for x, y in task_columns.items()},
    }
    evaluations: Mapping[str, Sequence[float]] = {}
    if result.evaluations:
      evaluations = _read_evaluations(workdir, task)
    results.append(
      result._replace(run=run, last=last, task=task, evaluations=evaluations)
    )
  return results or [result]


def _read(workdir: workdir_lib.Workdir) -> Result:
  config = workdir.read_config(base_config.SAVED).to_dict()
  run = curves.RunCurves(str(workdir.path), config, {})
  task = config['env']['id']
  if arguments := config['env'].get('factory_kwargs'):
    task += f' {arguments}'
  try:
    run = run._replace(columns=curves.read_run(workdir.path).columns)
  except ValueError as e:
    return Result(run, str(e), {}, task)
  last = {name: float(values[-1]) for name, values in run.columns.items()}
  if SECONDS not in last:
    return Result(run, f'its metrics.csv has no column {SECONDS}', {}, task)
  summary, total = read_summary(workdir), config['total_env_frames']
  target = config.get('target_return')
  if is_finished(summary, last[FRAMES], total, target):
    for column, name in _RETURNS.items():
      value = summary.get(name, last.get(column))
      last[column] = math.nan if value is None else value
    return Result(run, FINISHED, last, task, _read_evaluations(workdir))
  status = summary.get('status', 'running, or killed')
  status += f', {last[FRAMES]:,.0f} of {total:,} frames'
  return Result(run, status, last, task)


def _read_evaluations(
  workdir: workdir_lib.Workdir,
  task: str = '',
) -> Mapping[str, Sequence[float]]:
  """Returns the newest returns of each kind of actions, or of a task's."""
  path = workdir.path / 'evaluations.jsonl'
  lines = path.read_bytes().splitlines() if path.exists() else []
  newest: dict[str, list[float]] = {}
  try:
    entries = [file_io.json_object(line) for line in lines]
    for entry in entries:
      returns = [float(x) for x in entry['returns']]
      if task:
        pairs = zip(returns, entry['tasks'], strict=True)
        returns = [x for x, name in pairs if name == task]
      if returns:
        newest[entry['actions']] = returns
    return newest
  except (KeyError, TypeError, ValueError) as e:
    raise ValueError(f'{path} is damaged ({e}); delete it.') from e


def read_summary(workdir: workdir_lib.Workdir) -> Mapping[str, Any]:
  """Returns summary.json, {} if there is none; raises ValueError if damaged."""
  try:
    summary = file_io.read_json(workdir.summary_json)
    for name, allowed in _SUMMARY.items():
      if name in summary and not allowed.admits(summary[name]):
        raise ValueError(f'{name} is {summary[name]!r:.99}')
    return summary
  except FileNotFoundError:
    return {}
  except ValueError as e:
    raise ValueError(
      f'{workdir.summary_json} is damaged ({e}); delete it, and start the run '
      'again to have it written.'
    ) from e


def read_versions(folder: str | pathlib.Path) -> dict[str, Any]:
  """Returns the software of a run's latest start, {} if none is noted."""
  path = workdir_lib.Workdir(folder).versions
  try:
    lines = path.read_bytes().splitlines()
    return file_io.json_object(lines[-1]) if lines else {}
  except FileNotFoundError:
    return {}
  except (OSError, ValueError) as e:
    raise ValueError(f'{path} is damaged ({e}).') from e


def is_finished(
  summary: Mapping[str, Any],
  frames: float,
  total_frames: int,
  target_return: float | None = None,
) -> bool:
  """Returns whether a run has all its frames, or its target, and did not fail.

  `frames` are those of its last row: it may have been killed before it wrote
  its summary.
  """
  if summary.get('status', '').startswith('failed'):
    return False
  mean = summary.get('mean_return_100')
  if target_return is not None and mean is not None and mean >= target_return:
    return True
  return max(summary.get('env_frames', 0), frames) >= total_frames


def _without_task(config: Mapping[str, Any]) -> Mapping[str, Any]:
  env = {k: v for k, v in config['env'].items() if k not in _TASK_KEYS}
  return {**config, 'env': env}


class Scale(NamedTuple):
  """How scores of several tasks are made comparable.

  Attributes:
    name: of a scaled score.
    text: what 0 and 1 are; '' if scores stay as they are.
    ends: the scores of each task that become 0 and 1.
    is_fixed: whether other runs would be scaled alike.
  """

  name: str
  text: str
  ends: Mapping[str, tuple[float, float]]
  is_fixed: bool = True

  def __call__(self, task: str, scores: np.ndarray) -> np.ndarray:
    low, high = self.ends[task]
    return (scores - low) / (high - low)


@dataclasses.dataclass(frozen=True)
class Study:
  """Runs to compare; only finished ones with a score count."""

  results: Sequence[Result]

  @functools.cached_property
  def column(self) -> str:
    """The kind of return that is the score, the same for all runs."""
    evaluated = [r.run.config.get('num_eval_envs') for r in self.results]
    return EVALUATION if all(evaluated) else TRAINING

  def score(self, result: Result) -> float:
    return result.last.get(self.column, math.nan)

  def counts(self, result: Result) -> bool:
    is_score = abs(self.score(result)) <= curves.LARGEST
    return result.status == FINISHED and is_score

  @functools.cached_property
  def counted(self) -> list[Result]:
    return [result for result in self.results if self.counts(result)]

  @functools.cached_property
  def algorithms(self) -> list[str]:
    return list(dict.fromkeys(r.algorithm for r in self.counted))

  @functools.cached_property
  def tasks(self) -> list[str]:
    return sorted({r.task for r in self.counted})

  @functools.cached_property
  def common_tasks(self) -> list[str]:
    """The tasks of which all algorithms have scores."""
    return [
      t for t in self.tasks if all(self.runs(a, t) for a in self.algorithms)
    ]

  def runs(self, algorithm: str, task: str) -> list[Result]:
    wanted = (algorithm, task)
    return [r for r in self.counted if (r.algorithm, r.task) == wanted]

  def scores(self, algorithm: str, task: str) -> np.ndarray:
    """Returns the scores as they are, `[runs]`."""
    return np.array([self.score(r) for r in self.runs(algorithm, task)])

  def scaled(self, algorithm: str) -> list[np.ndarray]:
    """Returns scaled scores, `[runs]` for each common task."""
    return [self.scale(t, self.scores(algorithm, t)) for t in self.common_tasks]

  @functools.cached_property
  def scale(self) -> Scale:
    """Human-normalised for Atari; else from a task's worst run to its best."""
    games = {task: atari.game(task) for task in self.tasks}
    if all(games.values()):
      return Scale(
        'human-normalised score',
        '0 is the score of a random policy and 1 that of a human, as published '
        'by Wang et al. 2016 (arXiv 1511.06581).',
        {task: atari.SCORES[game] for task, game in games.items() if game},
      )
    if len(self.tasks) == 1:
      return Scale('return', '', {self.tasks[0]: (0.0, 1.0)})
    return Scale(
      'normalised score',
      'for each task 0 is the worst and 1 the best final score of a run in '
      'this report. So these figures compare the algorithms here; do not '
      'compare them with those of another report.',
      {task: self._extremes(task) for task in self.tasks},
      is_fixed=False,
    )

  def _extremes(self, task: str) -> tuple[float, float]:
    scores = [self.score(r) for r in self.counted if r.task == task]
    low, high = min(scores), max(scores)
    # All equal: all are the best.
    return (low, high) if high > low else (low - 1.0, low)
