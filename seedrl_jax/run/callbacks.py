"""What `on_report` gets, and functions for it that others share.

Imports no JAX.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from seedrl_jax.runtime import report

if TYPE_CHECKING:
  from seedrl_jax.evaluation import scoring


class Report(report.Summary):
  """The results so far, and what a function may do with the run.

  Attributes:
    metrics: the newest row of the curves by name, such as 'losses/entropy';
      None for what is not known. There are no losses before the first update.
  """

  metrics: Mapping[str, float | None]
  _run: Any

  @classmethod
  def make(
    cls, summary: report.Summary, metrics: Mapping[str, float | None], run: Any
  ) -> Report:
    """Returns the report of a run, whose `run` is a `training.Training`."""
    result = cls(*summary)
    result.metrics, result._run = metrics, run
    return result

  def stop(self) -> None:
    """Stops the run with a last checkpoint, as `on_report` does by False."""
    self._run.interrupt()

  def save(self) -> None:
    """Saves a checkpoint after the next update."""
    self._run.is_save_due = True

  def evaluate(
    self, episodes: int = 20, sample: bool = False, seed: int = 0
  ) -> scoring.Evaluation:
    """Plays episodes with the newest parameters, in this thread.

    The training goes on meanwhile, unless the run is deterministic. See
    `seedrl_jax.evaluate`.
    """
    return self._run.evaluate(episodes=episodes, sample=sample, seed=seed)


@dataclasses.dataclass
class StopAtReturn:
  """Stops a run whose mean return has reached a value.

  Attributes:
    value: mean return of the last 20 evaluation episodes.
    metric: another column of metrics.csv in its place, such as
      'rollout/return', of the last 100 training episodes.
  """

  value: float
  metric: str = 'eval/return'

  def __call__(self, run: Report) -> bool:
    """Returns whether to go on."""
    current = _value(run, self.metric)
    return current is None or current < self.value


@dataclasses.dataclass
class StopWithoutImprovement:
  """Stops a run whose best mean return is old.

  Attributes:
    frames: environment frames without a better one.
    metric: see `StopAtReturn`; a greater value is better.
    least: what counts as better, beyond the best one.
  """

  frames: float
  metric: str = 'eval/return'
  least: float = 0.0
  _best: float = dataclasses.field(default=-math.inf, init=False)
  _best_frames: float = dataclasses.field(default=0.0, init=False)

  def __call__(self, run: Report) -> bool:
    """Returns whether to go on."""
    current = _value(run, self.metric)
    if current is None or current > self._best + self.least:
      self._best_frames = run.env_frames
      self._best = self._best if current is None else current
    return run.env_frames - self._best_frames < self.frames


def _value(run: Report, metric: str) -> float | None:
  # Before the first update there are no losses.
  if run.updates and metric not in run.metrics:
    raise ValueError(
      f'metric={metric!r}: there is no such column in metrics.csv.'
    )
  return run.metrics.get(metric)


def call_all(functions: Any) -> Callable[[Report], bool]:
  """Returns a function that calls one or several; False if any is False."""
  several = [functions] if callable(functions) else list(functions or ())

  def call(run: Report) -> bool:
    # All are called, as each may count.
    answers = [function(run) for function in several]
    return not any(answer is False for answer in answers)

  return call
