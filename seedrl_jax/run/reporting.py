"""Counters, curves and summary of a run."""

import collections
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import ml_collections

from seedrl_jax.replay import table_configs
from seedrl_jax.run import network_watch, opening, task_returns
from seedrl_jax.runtime import file_io, progress, report, steal
from seedrl_jax.runtime import workdir as workdir_lib
from seedrl_jax.runtime.writers import metrics_log


class _Ended(NamedTuple):
  """An episode that has ended, and whether it was of training."""

  is_training: bool
  episode_return: float
  length: int
  task: int


@dataclasses.dataclass(eq=False)
class RunCounters:
  """Counts a run over all its parts, hosts and starts."""

  config: ml_collections.ConfigDict
  parts: opening.Parts
  before: report.RunRecord

  def __post_init__(self) -> None:
    self.placement = self.parts.plan.placement
    # Processor time until the start, and since then when it was last noted.
    self._cpu_start = self._cpu_seconds = 0.0
    self._start_time: float | None = None
    self._end_time: float | None = None
    # Inference asks at every step whether the run is finished.
    self._total_env_frames = int(self.config.total_env_frames)
    self._action_repeat = self.parts.plan.env_spec.action_repeat
    self._target_return = self.config.target_return
    # Whether the training has reached its target.
    self.is_solved = False
    self.note_returns(self.before.returns)
    # Latest counters of the other hosts since their start.
    self._remote: list[report.Snapshot] = []
    # On host 0: episodes on other hosts, all of training.
    self._remote_episodes: collections.deque[_Ended] = collections.deque(
      maxlen=report.WINDOW
    )

  def begin(self) -> None:
    """Starts the clock of the training."""
    self._start_time = time.perf_counter()
    self._cpu_start = time.process_time()

  def note_cpu(self) -> None:
    """Notes this process's time; with many threads too slow for each update."""
    self._cpu_seconds = time.process_time() - self._cpu_start

  def end(self) -> None:
    """Stops the clock."""
    self.note_cpu()
    self._end_time = time.perf_counter()

  def seconds(self) -> float:
    """Returns the seconds of training, of earlier starts too."""
    if self._start_time is None:
      return self.before.seconds
    end = self._end_time or time.perf_counter()
    return self.before.seconds + end - self._start_time

  def is_finished(self) -> bool:
    """Whether this host knows that the run has its frames or its target."""
    return self.is_solved or self.progress() >= 1.0

  def note_returns(self, returns: Sequence[float]) -> None:
    """Takes the returns of the last training episodes."""
    if self._target_return is None or len(returns) < report.WINDOW:
      return
    self.is_solved |= sum(returns) / len(returns) >= self._target_return

  def progress(self) -> float:
    """Returns the known share of its frames that the run has."""
    return self._share(self.env_steps())

  def _share(self, env_steps: int) -> float:
    return env_steps * self._action_repeat / self._total_env_frames

  def env_steps(self) -> int:
    """Returns the steps of the training environments of all hosts."""
    steps = self.before.env_steps + self.parts.env_steps()
    for snapshot in self._remote:
      steps += snapshot.env_steps
    return steps

  def snapshot(self) -> report.Snapshot:
    """Returns the counters of all hosts, over all starts."""
    total = self._local_snapshot(self.seconds())
    for snapshot in self._remote:
      total = total.plus(snapshot)
    return dataclasses.replace(
      total,
      env_steps=total.env_steps + self.before.env_steps,
      eval_steps=total.eval_steps + self.before.eval_steps,
      cpu_seconds=total.cpu_seconds + self.before.cpu_seconds,
      # The learners wait together, so this is their mean.
      learner_wait=total.learner_wait / self.placement.count,
    )

  def _local_snapshot(self, seconds: float = 0.0) -> report.Snapshot:
    workers = self.parts.workers
    counters = [worker.counters for worker in workers]
    learner = self.parts.learner.counters
    return report.Snapshot(
      seconds=seconds,
      env_steps=self.parts.env_steps(),
      eval_steps=sum(c.eval_steps for c in counters),
      updates=learner.updates,
      environment_wait=sum(c.environment_wait for c in counters),
      store_wait=sum(worker.store_wait for worker in workers),
      idle_env_seconds=sum(c.idle_env_seconds for c in counters),
      learner_wait=self.parts.prefetcher.wait_seconds,
      lag_sum=learner.lag_sum,
      lag_updates=learner.lag_updates,
      dropped_sum=learner.dropped_sum,
      num_envs=self._num_envs(),
      cpu_seconds=self._cpu_seconds,
    )

  def _num_envs(self) -> int:
    evaluation = 0 if self.placement.index else self.config.num_eval_envs
    local = self.config.env.num_envs + evaluation
    return local + self.parts.num_connected

  def take_episodes(self) -> Iterator[_Ended]:
    """Yields the episodes that have ended; on host 0 of all hosts."""
    while self._remote_episodes:
      yield self._remote_episodes.popleft()
    for worker in self.parts.workers:
      for episode in worker.take_episodes():
        yield _Ended(
          episode.env_id < worker.num_train_envs,
          episode.episode_return,
          episode.length,
          episode.task,
        )

  def local(self) -> dict[str, Any]:
    """Returns this host's counters for the others, and episodes for host 0."""
    figures = dataclasses.asdict(self._local_snapshot())
    if self.placement.index:
      episodes = [
        (episode.episode_return, episode.length, episode.task)
        for episode in self.take_episodes()
      ]
      figures['episodes'] = episodes[-report.WINDOW :]
    return figures

  def merge(self, figures: Sequence[Mapping[str, Any]]) -> float:
    """Takes all hosts' counters; returns the progress, the same on all."""
    snapshots = []
    for counters in map(dict, figures):
      episodes = counters.pop('episodes', ())
      if not self.placement.index:
        self._remote_episodes.extend(
          _Ended(True, total, int(length), int(task))
          for total, length, task in episodes
        )
      snapshots.append(report.Snapshot(**counters))
    # In one assignment, as other threads read it.
    index = self.placement.index
    self._remote = snapshots[:index] + snapshots[index + 1 :]
    return self._share(
      self.before.env_steps + sum(x.env_steps for x in snapshots)
    )


@dataclasses.dataclass(eq=False)
class RunReporter:
  """Writes a run's curves and summary, and prints its progress.

  `row` is the last row, and `waits` its shares of waiting; None before it.
  `evaluation` are the last evaluation episodes. Opens nothing at first; raises
  `ValueError` if a writer is not to be had.
  """

  counters: RunCounters
  workdir: workdir_lib.Workdir
  line: progress.ProgressLine

  def __post_init__(self) -> None:
    counters = self.counters
    self._config = counters.config
    # Host 0 writes the curves.
    writers = () if counters.placement.index else self._config.log.writers
    self._makes = metrics_log.load(writers)
    self._parts = counters.parts
    self._metrics: metrics_log.MetricsLog | None = None
    self._reporter = report.Reporter(
      counters.snapshot(),
      self._parts.plan.env_spec.action_repeat,
      len(self._parts.workers) * counters.placement.count,
      counters.before,
      report.DeviceWaits
      if self._parts.plan.device_env is not None
      else report.Waits,
    )
    self.evaluation = self._reporter.evaluation
    self.waits: report.Waits | None = None
    self.row: report.Row = {}
    self._num_connected = 0
    self._steal = steal.StealClock()
    self._watch = network_watch.NetworkWatch(counters.before.value_std)
    spec = self._parts.plan.env_spec.stream
    self._tasks = task_returns.TaskReturns(spec.tasks, spec.action_repeat)

  def open(self) -> None:
    """Opens the curves on host 0, and cuts them back to the checkpoint.

    Raises NotOpened if a writer cannot begin.
    """
    if self.counters.placement.index:
      return
    self._metrics = metrics_log.MetricsLog(
      self._makes, self.workdir.path, self._config, self.line.say
    )
    before = self.counters.before.env_steps
    self._metrics.roll_back(
      self._parts.learner.counters.updates,
      before * self._parts.plan.env_spec.action_repeat,
    )

  def close(self) -> None:
    """Closes the curves, if open; waits some seconds for their writers."""
    if self._metrics is not None:
      self._metrics.close()

  def write(self) -> report.Summary:
    """Prints a row of the curves and has it written; call `open` before.

    Returns the results at that moment.
    """
    self.counters.note_cpu()
    self.collect_episodes()
    # Before the tables', so that each counted update has its unrolls there.
    now = self.counters.snapshot()
    results = self._reporter.summary(now, 'running')
    if self._metrics is None:
      return results
    tables = self._parts.store.info()
    curves = self._parts.metrics()
    for name, info in tables.items():
      curves |= info.metrics('replay' if name == table_configs.TABLE else name)
    metrics = self._parts.learner.metrics()
    row, self.waits = self._reporter.row(
      now,
      self._parts.learner.take_lag_max(),
      {progress.STOLEN: self._steal.share()}
      | metrics
      | self._watch.metrics(metrics)
      | curves
      | self._tasks.metrics(),
    )
    self.row = row
    self._metrics.write(row)
    self._say_connected()
    if warning := self._watch.warning(row):
      self.line.say(warning)
    waits_for = (
      self._lacks_actors()
      or tables[table_configs.TABLE].filling()
      or self.waits.short()
    )
    total = self._config.total_env_frames
    self.line.update(
      progress.progress_text(row, total, waits_for),
      min(1.0, (row[report.FRAMES] or 0) / total),
    )
    return results

  def collect_episodes(self) -> None:
    """Takes the episodes that have ended, on host 0 of all hosts."""
    if self.counters.placement.index:
      return
    reporter = self._reporter
    for is_training, total, length, task in self.counters.take_episodes():
      if is_training and self.counters.is_solved:
        # The last returns remain those that reached the target.
        continue
      window = reporter.training if is_training else reporter.evaluation
      window.add(total, length)
      self._tasks.add(is_training, task, total, length)
    self.counters.note_returns(reporter.training.returns)

  def _say_connected(self) -> None:
    count, before = self._parts.num_connected, self._num_connected
    if count != before:
      self.line.say(
        f'Actors: {count} environments connected (before: {before}).'
      )
    self._num_connected = count

  def _lacks_actors(self) -> str:
    """Returns what to do if only actors can bring environments; else ''."""
    actors = self._parts.actors
    if actors is None or self._config.env.num_envs or actors.num_connected:
      return ''
    return (
      f'actors; start one with seedrl actor --learner={actors.addresses[0]}'
    )

  def record(self) -> report.RunRecord:
    """Returns the counters for a checkpoint; any thread may call it."""
    counters = self.counters
    counters.note_cpu()
    now = counters.snapshot()
    return report.RunRecord(
      env_steps=counters.env_steps(),
      eval_steps=now.eval_steps,
      cpu_seconds=now.cpu_seconds,
      seconds=counters.seconds(),
      starts=counters.before.starts + 1,
      returns=list(self._reporter.training.returns),
      eval_returns=list(self._reporter.evaluation.returns),
      value_std=self._watch.value_std,
      inference_keys=[w.key.tolist() for w in self._parts.workers],
    )

  def summary(self, status: str) -> report.Summary:
    return self._reporter.summary(self.counters.snapshot(), status)

  def write_summary(self, summary: report.Summary) -> None:
    """Writes it on host 0, and prints it unless nothing was learned in it."""
    index = self.counters.placement.index
    if index:
      self.line.say(
        f'Host {index} has ended: {summary.status}; host 0 has the summary.'
      )
      return
    if summary.updates or not summary.status.startswith('failed'):
      for line in self._tasks.summary():
        self.line.say(line)
      reporter = self._reporter
      waits = reporter.waits(reporter.start, self.counters.snapshot())
      self.line.say(progress.summary_text(summary, waits, self.workdir.path))
    else:
      self.line.clear()
    file_io.write_json(self.workdir.summary_json, summary._asdict())
