"""Makes rows of metrics and shares of waiting from a run's counters.

docs/metrics.md explains the metrics; a name is `group/quantity_unit`, or has no
unit if it is a plain number.
"""

import collections
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

# A report's values by name; None for what is not known.
Row = Mapping[str, float | None]
UPDATES, FRAMES = 'time/updates', 'time/env_frames'
# Episodes of a mean return. Evaluation has few environments: a hundred of their
# episodes would reach back to much older policies.
WINDOW = 100
EVAL_WINDOW = 20
# Shares of the time. Shorter waits for room are ignored; if both sides of the
# store wait longer than the second, the store sets the pace.
_BLOCKED = 0.1
_BOTH_BLOCKED = 0.25
# No wait is worth a word below this.
_SHORT_WAIT = 0.05
_SENTENCES = {
  'learner': (
    'Acting waits for the learner {:.0%} of the time: more devices to train '
    'on, or a smaller network, may help.'
  ),
  'store': (
    'Acting and the learner wait for each other {:.0%} of the time: a larger '
    '--config.replay.max_size may help.'
  ),
  'envs': (
    'Acting waits for steps {:.0%} of the time: more CPU cores or environments '
    'may help.'
  ),
  'inference': (
    'The environments wait for actions {:.0%} of the time: more environments, '
    'or more devices to act on, may help.'
  ),
  'acting': (
    'The learner waits for acting {:.0%} of the time: more environments, or '
    'more devices to act on, may help.'
  ),
}


@dataclasses.dataclass(frozen=True)
class Snapshot:
  """Counters at one moment; waits are in seconds, summed over threads."""

  seconds: float  # training time over all starts of the run
  env_steps: int = 0  # transitions of training environments
  eval_steps: int = 0  # transitions of evaluation environments
  updates: int = 0
  environment_wait: float = 0.0  # of inference for environments
  store_wait: float = 0.0  # of inference for room in the store
  idle_env_seconds: float = 0.0  # environments x seconds without an action
  learner_wait: float = 0.0  # of the learner for data
  lag_sum: float = 0.0  # of the mean policy lags of `lag_updates` updates
  lag_updates: int = 0
  num_envs: int = 0  # connected environments
  dropped_sum: float = 0.0  # of the updates' dropped shares of their unrolls
  cpu_seconds: float = 0.0  # of this program, without a Reverb server

  def plus(self, other: 'Snapshot') -> 'Snapshot':
    """Returns the sum with another host's counters of the same update."""
    names = {f.name for f in dataclasses.fields(self)} - {'seconds', 'updates'}
    sums = {name: getattr(self, name) + getattr(other, name) for name in names}
    return dataclasses.replace(self, **sums)


@dataclasses.dataclass
class RunRecord:
  """Counters of the run over all its starts; steps are transitions."""

  env_steps: int = 0
  eval_steps: int = 0
  seconds: float = 0.0
  cpu_seconds: float = 0.0
  starts: int = 0  # environments' seeds depend on it
  # Of the last episodes.
  returns: list[float] = dataclasses.field(default_factory=list)
  eval_returns: list[float] = dataclasses.field(default_factory=list)
  # Standard deviation of the network's values in the run's first report.
  value_std: float | None = None
  replay: str = ''  # name of the saved replay; '': none
  # PRNG key of each inference stream, as integers.
  inference_keys: list[list[int]] = dataclasses.field(default_factory=list)


class Summary(NamedTuple):
  """A run's results, over all its starts; None for means of no episodes."""

  env_frames: int  # steps of the training environments x action repeat
  env_steps: int  # their transitions
  seconds: float  # training time
  frames_per_second: float
  updates: int  # optimiser steps
  mean_return_100: float | None  # of the last 100 training episodes
  eval_mean_return: float | None  # of the last 20 evaluation episodes
  policy_lag_mean: float  # in batches, of the last start
  status: str  # 'running', 'finished', 'stopped', or 'failed: ' and why


@dataclasses.dataclass(frozen=True)
class Waits:
  """Shares of the time, 0..1, in which each part waited for another."""

  # A mean, from the arrival of a step to the departure of its action.
  envs_for_actions: float
  inference_for_envs: float
  inference_for_learner: float  # for room in the store or `learner.max_lag`
  learner_for_data: float

  def _bottleneck(self) -> tuple[str, float]:
    """Returns what sets the pace, a key of `_SENTENCES`, and the share waited.

    Of two sides, the one that waits less is the slower. If inference and the
    learner both wait long, the store is slow, or so small that they take turns.
    """
    room, data = self.inference_for_learner, self.learner_for_data
    if min(room, data) > _BOTH_BLOCKED:
      return 'store', min(room, data)
    if room > max(data, _BLOCKED):
      return 'learner', room
    if self.inference_for_envs > self.envs_for_actions:
      return 'envs', self.inference_for_envs
    return 'inference', self.envs_for_actions

  def report(self) -> str:
    """Returns a sentence about the bottleneck."""
    name, share = self._bottleneck()
    if share < _SHORT_WAIT:
      return 'No part of the run waits long for another.'
    return _SENTENCES[name].format(share)

  def short(self) -> str:
    """Returns the bottleneck and its share."""
    name, share = self._bottleneck()
    return f'{name} ({share:.0%})'


class DeviceWaits(Waits):
  """Those of inference that steps the environments itself.

  Unrolls begin when the learner is about to need them, so that both may wait
  long with a store of any size.
  """

  def _bottleneck(self) -> tuple[str, float]:
    room, data = self.inference_for_learner, self.learner_for_data
    return ('learner', room) if room > data else ('acting', data)


class EpisodeWindow:
  """Returns and lengths of the last episodes; the count and steps of all."""

  def __init__(self, returns: Iterable[float] = (), size: int = WINDOW):
    self.returns = collections.deque(returns, maxlen=size)
    self.lengths: collections.deque[int] = collections.deque(maxlen=size)
    self.count = 0
    self.steps = 0

  def add(self, episode_return: float, length: int) -> None:
    """Adds a finished episode."""
    self.returns.append(episode_return)
    self.lengths.append(length)
    self.count += 1
    self.steps += length

  def mean_return(self) -> float | None:
    return _mean(self.returns)

  def mean_length(self) -> float | None:
    """Returns the mean length in steps; None if there is none."""
    return _mean(self.lengths)


def _mean(values: collections.deque[Any]) -> float | None:
  return float(sum(values) / len(values)) if values else None


@dataclasses.dataclass(eq=False)
class Reporter:
  """Makes reports from the differences of snapshots, after those `before`."""

  start: Snapshot
  action_repeat: int
  num_workers: int
  before: RunRecord = dataclasses.field(default_factory=RunRecord)
  waits_type: type[Waits] = Waits

  def __post_init__(self) -> None:
    self.training = EpisodeWindow(self.before.returns)
    self.evaluation = EpisodeWindow(self.before.eval_returns, EVAL_WINDOW)
    self._last = self.start
    # Frames per second, and time, of the last report with new frames.
    self._speed = 0.0
    self._speed_at = self.start.seconds

  def row(
    self, now: Snapshot, lag_max: int, metrics: Row
  ) -> tuple[dict[str, float | None], Waits]:
    """Returns the metrics and the shares of waiting since the last call.

    `lag_max` is the largest policy lag since then; `metrics` are of the last
    update, the store and the actors.
    """
    last, self._last = self._last, now
    seconds = max(now.seconds - last.seconds, 1e-9)
    waits = self.waits(last, now)
    # Large unrolls of slow environments come in only now and then.
    if steps := now.env_steps - last.env_steps:
      elapsed = max(now.seconds - self._speed_at, 1e-9)
      self._speed = steps * self.action_repeat / elapsed
      self._speed_at = now.seconds
    updates = now.lag_updates - last.lag_updates
    lag_mean = dropped = None
    if updates:
      lag_mean = (now.lag_sum - last.lag_sum) / updates
      dropped = (now.dropped_sum - last.dropped_sum) / updates
    row: dict[str, float | None] = {
      'time/elapsed_s': now.seconds,
      'time/cpu_s': now.cpu_seconds,
      FRAMES: now.env_steps * self.action_repeat,
      'time/env_steps': now.env_steps,
      UPDATES: now.updates,
      'time/frames_per_s': self._speed,
      'time/updates_per_s': (now.updates - last.updates) / seconds,
      'rollout/return': self.training.mean_return(),
      'rollout/length_steps': self.training.mean_length(),
      'rollout/episodes': self.training.count,
      'eval/return': self.evaluation.mean_return(),
      'eval/length_steps': self.evaluation.mean_length(),
      'replay/policy_lag_mean_batches': lag_mean,
      'replay/policy_lag_max_batches': lag_max if updates else None,
      'replay/dropped_share': dropped,
    }
    for field in dataclasses.fields(waits):
      row[f'time/wait_{field.name}_share'] = getattr(waits, field.name)
    for name, value in metrics.items():
      row[name if '/' in name else f'losses/{name}'] = value
    return row, waits

  def summary(self, now: Snapshot, status: str) -> Summary:
    """Returns the results so far."""
    frames = now.env_steps * self.action_repeat
    return Summary(
      env_frames=frames,
      env_steps=now.env_steps,
      seconds=now.seconds,
      frames_per_second=frames / max(now.seconds, 1e-9),
      updates=now.updates,
      mean_return_100=self.training.mean_return(),
      eval_mean_return=self.evaluation.mean_return(),
      policy_lag_mean=now.lag_sum / max(now.lag_updates, 1),
      status=status,
    )

  def waits(self, last: Snapshot, now: Snapshot) -> Waits:
    """Returns the shares of waiting between two moments."""
    seconds = max(now.seconds - last.seconds, 1e-9)
    threads = seconds * self.num_workers
    # Actors may have come or gone.
    envs = seconds * max(last.num_envs, now.num_envs, 1)

    def share(name: str, total: float) -> float:
      # A wait counts when it ends, so a share could exceed 1.
      return min(1.0, (getattr(now, name) - getattr(last, name)) / total)

    return self.waits_type(
      envs_for_actions=share('idle_env_seconds', envs),
      inference_for_envs=share('environment_wait', threads),
      inference_for_learner=share('store_wait', threads),
      learner_for_data=share('learner_wait', seconds),
    )
