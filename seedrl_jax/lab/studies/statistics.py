"""Statistics of scores over runs and tasks, with stratified bootstraps.

As in Agarwal et al. 2021 (arXiv 2108.13264) and its library rliable. Scores are
one array for each task, `[runs]` or, of a statistic over resamples, `[reps,
runs]`; tasks may have different numbers of runs. Statistics return `[]` or
`[reps]`.
"""

from collections.abc import Callable, Sequence

import numpy as np

Scores = Sequence[np.ndarray]
Statistic = Callable[[Scores], np.ndarray]

REPS = 10_000
_PERCENTILES = (2.5, 97.5)


def mean(scores: Scores) -> np.ndarray:
  """Returns the mean over tasks of their mean scores."""
  return _task_means(scores).mean(0)


def median(scores: Scores) -> np.ndarray:
  """Returns the median over tasks of their mean scores; of one task's runs."""
  if len(scores) == 1:
    return np.median(scores[0], -1)
  return np.median(_task_means(scores), 0)


def iqm(scores: Scores) -> np.ndarray:
  """Returns the interquartile mean of all tasks' runs.

  A quarter of the runs, rounded down, is left out at either end.
  """
  runs = np.sort(np.concatenate(scores, -1), -1)
  count = runs.shape[-1]
  return runs[..., count // 4 : count - count // 4].mean(-1)


def optimality_gap(scores: Scores) -> np.ndarray:
  """Returns how far scores are below 1 in the mean; more than 1 counts as 1."""
  return 1.0 - mean([np.minimum(task, 1.0) for task in scores])


def profile(scores: Scores, thresholds: np.ndarray) -> np.ndarray:
  """Returns the share of runs above each of `thresholds`, in a last axis."""
  runs = np.concatenate(scores, -1)
  return np.stack([(runs > t).mean(-1) for t in thresholds], -1)


def resample(scores: Scores, reps: int = REPS, seed: int = 0) -> Scores:
  """Returns `reps` bootstrap samples: runs are resampled within each task."""
  random = np.random.default_rng(seed)
  return [
    task[random.integers(len(task), size=(reps, len(task)))] for task in scores
  ]


def interval(values: np.ndarray) -> np.ndarray:
  """Returns the limits, in a first axis, of 95 % of `[reps, ...]` values."""
  return np.percentile(values, _PERCENTILES, axis=0)


def has_interval(scores: Scores) -> bool:
  """Returns whether every task has the two runs that a bootstrap needs."""
  return all(len(task) > 1 for task in scores)


def _task_means(scores: Scores) -> np.ndarray:
  return np.stack([task.mean(-1) for task in scores])
