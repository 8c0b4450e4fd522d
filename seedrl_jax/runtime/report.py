"""Turns a run's growing counters into rows of metrics and progress lines."""

import collections
import dataclasses
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from seedrl_jax.runtime import columns, progress

# Episodes that a mean return is taken over. Evaluation has few environments:
# a hundred of their episodes would reach back to policies long gone.
WINDOW = 100
EVAL_WINDOW = 20


@dataclasses.dataclass(frozen=True)
class Snapshot:
  """Counters at one moment, all growing over the run.

  Attributes:
    seconds: of training, over all starts of the run.
    env_steps: transitions of training environments.
    eval_steps: transitions of evaluation environments.
    updates: finished updates.
    environment_wait, store_wait: seconds that inference threads waited, summed
      over threads.
    idle_env_seconds: environments x seconds of waiting for actions.
    learner_wait: seconds that the learner waited for data.
    lag_sum, lag_updates: sum of the updates' mean policy lag, and their count.
    num_envs: environments that are there now.
  """

  seconds: float
  env_steps: int = 0
  eval_steps: int = 0
  updates: int = 0
  environment_wait: float = 0.0
  store_wait: float = 0.0
  idle_env_seconds: float = 0.0
  learner_wait: float = 0.0
  lag_sum: float = 0.0
  lag_updates: int = 0
  num_envs: int = 0

  def plus(self, other: 'Snapshot') -> 'Snapshot':
    """Adds what another host counted in the same time, at the same update."""
    names = {f.name for f in dataclasses.fields(self)} - {'seconds', 'updates'}
    sums = {name: getattr(self, name) + getattr(other, name) for name in names}
    return dataclasses.replace(self, **sums)


class EpisodeWindow:
  """Returns and lengths of the last episodes."""

  def __init__(self, returns: Iterable[float] = (), size: int = WINDOW):
    """Continues from the returns of an earlier start."""
    self.returns = collections.deque(returns, maxlen=size)
    self.lengths: collections.deque[int] = collections.deque(maxlen=size)

  def add(self, episode_return: float, length: int) -> None:
    """Adds one finished episode."""
    self.returns.append(episode_return)
    self.lengths.append(length)

  def mean_return(self) -> float | None:
    """Returns the mean of the window, None while it is empty."""
    return _mean(self.returns)

  def mean_length(self) -> float | None:
    """Returns the mean length in steps, None while there is none."""
    return _mean(self.lengths)


def _mean(values: collections.deque[Any]) -> float | None:
  return float(sum(values) / len(values)) if values else None


class Reporter:
  """Makes a report from the difference of two snapshots."""

  def __init__(
    self,
    start: Snapshot,
    action_repeat: int,
    num_workers: int,
    returns: Iterable[float] = (),
    eval_returns: Iterable[float] = (),
  ):
    """Begins at `start`; the windows continue those of an earlier start."""
    self.training = EpisodeWindow(returns)
    self.evaluation = EpisodeWindow(eval_returns, EVAL_WINDOW)
    self._start = self._last = start
    self._action_repeat = action_repeat
    self._num_workers = num_workers

  def row(
    self, now: Snapshot, lag_max: int, metrics: Mapping[str, float]
  ) -> tuple[dict[str, float | None], progress.Waits]:
    """Returns the metrics since the last call and the shares of waiting.

    Args:
      now: the counters.
      lag_max: the largest policy lag since the last call.
      metrics: of the last update, of the store and of the actors.
    """
    last, self._last = self._last, now
    seconds = max(now.seconds - last.seconds, 1e-9)
    waits = self._waits(last, now)
    steps = now.env_steps - last.env_steps
    updates = now.lag_updates - last.lag_updates
    row: dict[str, float | None] = {
      'time/elapsed_s': now.seconds,
      'time/env_frames': now.env_steps * self._action_repeat,
      'time/env_steps': now.env_steps,
      'time/updates': now.updates,
      'time/frames_per_s': steps * self._action_repeat / seconds,
      'time/updates_per_s': (now.updates - last.updates) / seconds,
      'rollout/return': self.training.mean_return(),
      'rollout/length_steps': self.training.mean_length(),
      'eval/return': self.evaluation.mean_return(),
      'eval/length_steps': self.evaluation.mean_length(),
      'replay/policy_lag_mean_updates': (
        (now.lag_sum - last.lag_sum) / updates if updates else None
      ),
      'replay/policy_lag_max_updates': lag_max if updates else None,
    }
    for field in dataclasses.fields(waits):
      row[f'time/wait_{field.name}_share'] = getattr(waits, field.name)
    row |= {columns.of_metric(name): value for name, value in metrics.items()}
    return row, waits

  def total_waits(self, now: Snapshot) -> progress.Waits:
    """Returns the shares of waiting since the reporter was made."""
    return self._waits(self._start, now)

  def summary(self, now: Snapshot, status: str) -> dict[str, Any]:
    """Returns what summary.json says of the run, over all its starts.

    The policy lag alone is that of the last start.
    """
    frames = now.env_steps * self._action_repeat
    return {
      'env_frames': frames,
      'env_steps': now.env_steps,
      'seconds': now.seconds,
      'frames_per_second': frames / max(now.seconds, 1e-9),
      'updates': now.updates,
      'mean_return_100': self.training.mean_return(),
      'eval_mean_return': self.evaluation.mean_return(),
      'policy_lag_mean': now.lag_sum / max(now.lag_updates, 1),
      'status': status,
    }

  def _waits(self, last: Snapshot, now: Snapshot) -> progress.Waits:
    seconds = max(now.seconds - last.seconds, 1e-9)
    threads = seconds * self._num_workers
    # Actors may have come or gone.
    envs = seconds * max(last.num_envs, now.num_envs, 1)
    idle = now.idle_env_seconds - last.idle_env_seconds
    environment = now.environment_wait - last.environment_wait
    store = now.store_wait - last.store_wait
    learner = now.learner_wait - last.learner_wait
    # A wait may be counted as it ends, later than most of it was.
    return progress.Waits(
      envs_for_actions=min(1.0, idle / envs),
      inference_for_envs=min(1.0, environment / threads),
      inference_for_learner=min(1.0, store / threads),
      learner_for_data=min(1.0, learner / seconds),
    )


def progress_text(
  row: Mapping[str, float | None], total_frames: int, waits_for: str
) -> str:
  """Returns a row as the line that a person watches.

  Args:
    row: from `Reporter.row`.
    total_frames: that the run will have.
    waits_for: what holds the run up.
  """
  frames = row['time/env_frames'] or 0

  def number(name: str, digits: int) -> str:
    value = row[name]
    return '-' if value is None else f'{value:.{digits}f}'

  return (
    f'{progress.format_count(frames)}/{progress.format_count(total_frames)} '
    f'frames ({frames / total_frames:.0%}) | '
    f'{progress.format_count(row["time/frames_per_s"] or 0)} frames/s | '
    f'return {number("rollout/return", 1)} '
    f'(eval {number("eval/return", 1)}) | '
    f'{progress.format_count(row["time/updates"] or 0)} updates | '
    f'lag {number("replay/policy_lag_mean_updates", 1)} | '
    f'waits for {waits_for}'
  )


def summary_text(
  summary: Mapping[str, Any], waits: progress.Waits, workdir: pathlib.Path
) -> str:
  """Returns the lines that a run ends with.

  Args:
    summary: as in summary.json.
    waits: over this start of the run.
    workdir: where the curves are.
  """

  def mean(name: str) -> str:
    value = summary[name]
    return '-' if value is None else f'{value:.2f}'

  status = str(summary['status']).partition(':')[0].capitalize()
  return (
    f'{status} after {summary["env_frames"]} frames in '
    f'{summary["seconds"]:.1f} s '
    f'({progress.format_count(summary["frames_per_second"])} frames/s), '
    f'{summary["updates"]} updates.\n'
    f'Mean return of the last {WINDOW} episodes: {mean("mean_return_100")}; '
    f'evaluation (last {EVAL_WINDOW}): {mean("eval_mean_return")}.\n'
    f'{waits.report()[0].upper()}{waits.report()[1:]}.\n'
    f'Curves: {workdir}/metrics.csv; draw them with\n'
    f'  python launch/plot.py --workdir={workdir}'
  )
