"""What a run knows and says of itself: counters, curves, summary.

`system` asks it for everything that is counted over the parts of a run and all
its starts, and tells it when the training begins and ends.
"""

import collections
import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections

from seedrl_jax.demonstrations import folder
from seedrl_jax.replay import base as replay
from seedrl_jax.replay import table_configs
from seedrl_jax.run import build
from seedrl_jax.run import layout as layout_lib
from seedrl_jax.runtime import metrics, progress, report
from seedrl_jax.runtime import record as record_lib
from seedrl_jax.runtime import workdir as workdir_lib

# Return and length of each.
_Episodes = collections.deque[tuple[float, int]]


class RunReports:
  """Counts a run and writes its reports."""

  def __init__(
    self,
    config: ml_collections.ConfigDict,
    parts: build.Parts,
    before: record_lib.RunRecord,
    workdir: workdir_lib.Workdir,
    line: progress.ProgressLine,
    place: layout_lib.Place = layout_lib.ALONE,
  ):
    """Begins where the run was left; writes nothing yet.

    Args:
      config: the run's configuration.
      parts: of the run.
      before: what the checkpoint says that the run continues from.
      workdir: where the reports go.
      line: where to say how it goes.
      place: of this host. Host 0 writes, of all hosts, what the others told.
    """
    self._config = config
    self._place = place
    self._told: dict[int, report.Snapshot] = {}
    # Episodes on their way to host 0, and arrived there; older ones than the
    # window has count for nothing.
    self._untold: _Episodes = collections.deque(maxlen=report.WINDOW)
    self._heard: _Episodes = collections.deque(maxlen=report.WINDOW)
    self._next_episodes = 0.0
    # Of the other hosts' stores and actors, as they told last.
    self._curves: dict[int, dict[str, float]] = {}
    self._lag_max = 0
    self._lacked = ''  # what this host waited for at its last report
    self._parts = parts
    self._before = before
    self._workdir = workdir
    self._line = line
    self._start_time = 0.0
    self._end_time = 0.0  # while it is not over
    self._metrics: metrics.MetricsLog | None = None
    self._waits: progress.Waits | None = None
    self._reporter = report.Reporter(
      self._snapshot(before.seconds),
      parts.env_spec.action_repeat,
      len(parts.workers) * place.count,
      before.returns,
      before.eval_returns,
    )

  @property
  def waits(self) -> progress.Waits | None:
    """The last row's shares of waiting; None before the first."""
    return self._waits

  @property
  def start_time(self) -> float:
    """When the training began, as `time.perf_counter`."""
    return self._start_time

  def start(self) -> None:
    """Notes that the training begins now."""
    self._start_time = time.perf_counter()

  def end(self) -> None:
    """Notes that it has ended: what is said from now on is of one moment."""
    self._end_time = time.perf_counter()

  def open(self) -> None:
    """Opens the curves, as they were at the checkpoint; host 0 has them."""
    if self._place.index:
      return
    self._metrics = metrics.MetricsLog(
      self._workdir, self._config.log.tensorboard, self._line.say
    )
    self._metrics.roll_back(
      self._parts.learner.counters.updates,
      self._before.env_steps * self._parts.env_spec.action_repeat,
    )

  def is_finished(self) -> bool:
    """Whether the run has all its frames, as far as this host knows."""
    return self.progress() >= 1.0

  def progress(self) -> float:
    """Returns the share of its frames that the run has, as far as is known."""
    return self._share(self._env_steps())

  def _share(self, env_steps: int) -> float:
    frames = env_steps * self._parts.env_spec.action_repeat
    return frames / self._config.total_env_frames

  def tell(self, is_last: bool = False) -> dict[str, Any]:
    """Returns this host's figures for the others; one thread calls it.

    Args:
      is_last: whether there will be none after these.

    Returns:
      What JSON can hold: its counters since the start, and now and then the
      episodes that ended since they were last told, the largest policy lag
      since then, and the state of its store and actors.
    """
    told = dataclasses.asdict(self._own_snapshot())
    now = time.perf_counter()
    if self._place.index and (is_last or now >= self._next_episodes):
      self._next_episodes = now + self._config.log.every_seconds
      self._collect_episodes()
      told['episodes'] = list(self._untold)
      self._untold.clear()
      told['lag_max'] = self._parts.learner.take_lag_max()
      # In the end the store no longer answers.
      if not is_last:
        told['curves'] = self._own_curves(self._parts.store.info())
    return told

  def hear(self, figures: Sequence[Mapping[str, Any]]) -> float:
    """Takes what all hosts told, by their index.

    Returns:
      The run's progress, which all hosts find alike.
    """
    told: dict[int, report.Snapshot] = {}
    for index, counters in enumerate(map(dict, figures)):
      self._heard.extend(counters.pop('episodes', ()))
      self._lag_max = max(self._lag_max, counters.pop('lag_max', 0))
      if curves := counters.pop('curves', None):
        self._curves[index] = curves
      told[index] = report.Snapshot(**counters)
    # At once, as other threads read it.
    self._told = told
    steps = sum(s.env_steps for s in told.values())
    return self._share(self._before.env_steps + steps)

  def write(self) -> None:
    """Writes a row of the curves and shows it; after `open`."""
    if self._metrics is None:
      # The curves are another host's.
      self._say_what_lacks()
      return
    self._collect_episodes()
    tables = self._parts.store.info()
    table = tables[table_configs.TABLE]
    lag_max, self._lag_max = self._lag_max, 0
    row, self._waits = self._reporter.row(
      self._snapshot(self._seconds()),
      max(lag_max, self._parts.learner.take_lag_max()),
      self._parts.learner.metrics()
      | _together([self._own_curves(tables), *self._curves.values()]),
    )
    self._metrics.write(row)
    self._line.update(
      report.progress_text(
        row,
        self._config.total_env_frames,
        self._lacks_actors() or table.filling() or self._waits.short(),
      )
    )

  def _say_what_lacks(self) -> None:
    """Says, once each time, that this host can only wait for actors."""
    before, self._lacked = self._lacked, self._lacks_actors()
    if self._lacked and not before:
      self._line.say(f'This host waits for {self._lacked}')

  def _lacks_actors(self) -> str:
    """Returns what to do if actors alone can step environments, and none is
    there; else ''."""
    actors = self._parts.actors
    if actors is None or self._config.env.num_envs or actors.num_connected:
      return ''
    return (
      'actors; start one with python launch/actor.py '
      f'--learner={actors.addresses[0]}'
    )

  def record(self) -> record_lib.RunRecord:
    """Returns the counters for a checkpoint; any thread may call it."""
    reporter = self._reporter
    return record_lib.RunRecord(
      env_steps=self._env_steps(),
      eval_steps=self._snapshot(0.0).eval_steps,
      seconds=self._seconds(),
      starts=self._before.starts + 1,
      returns=list(reporter.training.returns),
      eval_returns=list(reporter.evaluation.returns),
      inference_keys=[w.device_step.key.tolist() for w in self._parts.workers],
    )

  def summary(self, status: str) -> dict[str, Any]:
    """Returns the summary of a run that has come to `status`."""
    return self._reporter.summary(self._snapshot(self._seconds()), status)

  def write_summary(self, status: str) -> dict[str, Any]:
    """Writes the summary, tells it, and returns it; host 0 writes it."""
    summary = self.summary(status)
    if self._place.index:
      self._line.say(
        f'Host {self._place.index} has ended: {status}; host 0 has the summary.'
      )
      return summary
    waits = self._reporter.total_waits(self._snapshot(summary['seconds']))
    self._line.say(report.summary_text(summary, waits, self._workdir.path))
    workdir_lib.write_json(self._workdir.summary_json, summary)
    return summary

  def _own_curves(
    self, tables: Mapping[str, replay.TableInfo]
  ) -> dict[str, float]:
    """Returns what the curves have of this host's store and actors."""
    curves = tables[table_configs.TABLE].metrics() | self._parts.metrics()
    if folder.TABLE in tables:
      name = folder.TABLE
      curves |= tables[name].metrics(name)
    return curves

  def _env_steps(self) -> int:
    others = sum(s.env_steps for s in self._others())
    return self._before.env_steps + self._parts.env_steps() + others

  def _others(self) -> list[report.Snapshot]:
    """Returns what the other hosts told last."""
    return [s for i, s in self._told.items() if i != self._place.index]

  def _seconds(self) -> float:
    end = self._end_time or time.perf_counter()
    return self._before.seconds + end - self._start_time

  def _snapshot(self, seconds: float) -> report.Snapshot:
    """Returns the counters of all hosts, over all starts."""
    total = self._own_snapshot(seconds)
    for other in self._others():
      total = total.plus(other)
    return dataclasses.replace(
      total,
      env_steps=total.env_steps + self._before.env_steps,
      eval_steps=total.eval_steps + self._before.eval_steps,
      # The learners wait together: what one of them did, in the mean.
      learner_wait=total.learner_wait / self._place.count,
    )

  def _own_snapshot(self, seconds: float = 0.0) -> report.Snapshot:
    """Returns this host's counters, since its start."""
    counters = [worker.counters for worker in self._parts.workers]
    learner = self._parts.learner.counters
    return report.Snapshot(
      seconds=seconds,
      env_steps=self._parts.env_steps(),
      eval_steps=sum(c.eval_steps for c in counters),
      updates=learner.updates,
      environment_wait=sum(c.environment_wait for c in counters),
      store_wait=sum(w.store_wait for w in self._parts.workers),
      idle_env_seconds=sum(c.idle_env_seconds for c in counters),
      learner_wait=self._parts.prefetcher.wait_seconds,
      lag_sum=learner.lag_sum,
      lag_updates=learner.lag_updates,
      num_envs=self._num_envs(),
    )

  def _num_envs(self) -> int:
    """Returns the environments of this host that are there now."""
    config, actors = self._config, self._parts.actors
    evaluation = 0 if self._place.index else config.num_eval_envs
    remote = 0 if actors is None else actors.num_connected
    return config.env.num_envs + evaluation + remote

  def _collect_episodes(self) -> None:
    while self._heard:
      self._reporter.training.add(*self._heard.popleft())
    for worker in self._parts.workers:
      for episode in worker.stream.take_episodes():
        if self._place.index:
          # Others have the evaluation.
          self._untold.append((episode.episode_return, episode.length))
          continue
        window = (
          self._reporter.training
          if episode.env_id < worker.num_train_envs
          else self._reporter.evaluation
        )
        window.add(episode.episode_return, episode.length)


def _together(hosts: Sequence[Mapping[str, float]]) -> dict[str, float]:
  """Returns the sums of what hosts counted, and the means of their ratios."""
  total = {
    name: sum(curves.get(name, 0.0) for curves in hosts) for name in hosts[0]
  }
  for name in total:
    if name.endswith('/samples_per_insert'):
      total[name] /= len(hosts)
  return total
