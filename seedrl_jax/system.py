"""One run from its configuration to its summary: threads and life cycle.

`launch/train.py` calls `System.train`; tests and benchmarks make a `System`
with streams of their own. The rooms are wired by `builder`.
"""

import contextlib
import functools
import os
import time
from typing import Any

import ml_collections
import numpy as np

from seedrl_jax import builder, saved_run
from seedrl_jax.envs import base as envs
from seedrl_jax.learner import learner as learner_lib
from seedrl_jax.learner import prefetch as prefetch_lib
from seedrl_jax.learner import update as update_lib
from seedrl_jax.replay import base as replay
from seedrl_jax.replay import demonstrations, rules
from seedrl_jax.runtime import (
  metrics,
  process,
  profiler,
  progress,
  report,
  threads,
)
from seedrl_jax.runtime import record as record_lib
from seedrl_jax.runtime import workdir as workdir_lib

# For threads to end, in which they cannot be interrupted: in all, and before
# the user is told what is waited for.
_JOIN_SECONDS = 600.0
_QUIET_JOIN_SECONDS = 10.0


class RunFailed(RuntimeError):
  """A thread of the run failed; the message holds its traceback."""


class System:
  """A run in a work directory."""

  def __init__(
    self,
    config: ml_collections.ConfigDict,
    workdir: str | os.PathLike[str],
    profile_updates: int = 0,
    make_streams: builder.MakeStream | None = None,
    line: progress.ProgressLine | None = None,
  ):
    """Builds the run, or the continuation of the one in `workdir`.

    Args:
      config: see `configs/base.py`.
      workdir: made where needed.
      profile_updates: updates to capture a profile of.
      make_streams: makes the environments of a stream; None: as configured.
      line: where to say how it goes; None: standard output.

    Raises:
      ValueError: where configuration, work directory and host do not fit each
        other, in one sentence.
    """
    self._config = config
    self._line = line or progress.ProgressLine()
    self._workdir = workdir_lib.Workdir(workdir)
    self._workdir.create()
    with contextlib.ExitStack() as opened:
      self._saved = saved_run.SavedRun(config, self._workdir, self._line.say)
      opened.callback(self._saved.close)
      self._parts = builder.build(
        config,
        self._saved.restore,
        lambda: self._saved.record.starts,
        make_streams,
        str(self._workdir.reverb),
        lambda: self._saved.replay_path,
      )
      opened.callback(self._parts.close)
      self._saved.restore_replay(self._parts.store)
      self._fill_demonstrations()
      offset = config.topology.inference_affinity_offset
      self._cores = [
        process.pinned_core(offset, i) for i in range(len(self._parts.workers))
      ]
      self._restore_keys()
      # Nothing failed: `train` closes them.
      opened.pop_all()
    self._reporter = report.Reporter(
      self._snapshot(self._saved.record.seconds),
      self._parts.env_spec.action_repeat,
      len(self._parts.workers),
      config.env.num_envs + config.num_eval_envs,
      self._saved.record.returns,
      self._saved.record.eval_returns,
    )
    self._profiler = profiler.UpdateProfiler(
      self._workdir.profile, profile_updates, self._line.say
    )
    self._group = threads.ThreadGroup(
      ends=(replay.StoreClosed, envs.StreamClosed, prefetch_lib.PrefetchClosed)
    )
    self._group.on_stop(self._parts.interrupt)
    self._start_time = 0.0
    self._end_time = 0.0  # while it is not over
    self._last_checkpoint = 0.0
    self._interrupted = False
    self._waits: progress.Waits | None = None

  @property
  def parts(self) -> builder.Parts:
    """The parts of the run."""
    return self._parts

  @property
  def waits(self) -> progress.Waits | None:
    """The last report's shares of waiting; None before the first."""
    return self._waits

  def stop(self) -> None:
    """Asks the run to stop, from any thread or a signal handler."""
    self._interrupted = True

  def train(self) -> dict[str, Any]:
    """Trains to the end, or until stopped; to be called once.

    Returns:
      The summary, as written to summary.json.

    Raises:
      RunFailed: where a thread failed; the summary is written all the same.
    """
    with contextlib.ExitStack() as opened:
      opened.callback(self._saved.close)
      opened.callback(self._parts.store.close)
      opened.callback(self._group.stop)
      self._start_time = time.perf_counter()
      if self._is_finished():
        self._line.say(
          'The run has all its frames; raise --config.total_env_frames to go '
          'on.'
        )
        return self._summary('finished')
      self._compile()
      # Only now: a start that fails leaves an earlier run's files as they are.
      self._workdir.write_config(self._config)
      self._metrics = metrics.MetricsLog(
        self._workdir, self._config.log.tensorboard
      )
      opened.callback(self._metrics.close)
      self._metrics.roll_back(
        self._parts.learner.counters.updates, self._saved.record.env_steps
      )
      self._start_time = self._last_checkpoint = time.perf_counter()
      self._group.run('main', self._train)
      self._group.stop()
      stuck = self._group.join(_QUIET_JOIN_SECONDS)
      if stuck:
        # A large network's update takes this long on a CPU.
        self._line.say('Waiting for the running update and batch to end.')
        stuck = self._group.join(_JOIN_SECONDS)
      # What summary, curves and checkpoint say of the end is one moment.
      self._end_time = time.perf_counter()
      return self._finish(stuck)

  def _train(self) -> None:
    if self._interrupted:
      return
    if self._config.deterministic:
      self._train_in_lock_step()
    else:
      self._train_in_threads()

  def _compile(self) -> None:
    """Compiles inference and update, so that nothing does in mid-run."""
    self._line.say(
      f'{self._parts.env_spec.env_id} on {self._parts.topology.describe()}; '
      f'work directory {self._workdir.path}'
    )
    start = time.perf_counter()
    for worker in self._parts.workers:
      if not self._interrupted:
        worker.compile()
    if not self._interrupted:
      self._parts.learner.compile(self._parts.blank_batch)
    self._line.say(f'Compiled in {time.perf_counter() - start:.1f} s.')

  # -- threads -------------------------------------------------------------

  def _train_in_threads(self) -> None:
    parts, group = self._parts, self._group
    for i, worker in enumerate(parts.workers):
      run = functools.partial(worker.run, group.should_stop)
      group.start(f'inference-{i}', run, self._cores[i])
    group.start('prefetch', lambda: parts.prefetcher.run(group.should_stop))
    group.start('learner', self._learn)
    interval = self._config.log.every_seconds
    next_report = time.perf_counter() + interval
    # Signal handlers run between these waits.
    while not group.wait(min(0.1, interval)) and not self._interrupted:
      now = time.perf_counter()
      if now >= next_report:
        self._report()
        self._fill_demonstrations()
        next_report = now + interval

  def _learn(self) -> None:
    parts = self._parts
    while not self._group.should_stop():
      if parts.prefetcher.is_empty:
        # With time to spare, inference should not act with older parameters
        # until the next batch comes.
        parts.learner.flush()
      parts.learner.step(parts.prefetcher.get())
      self._after_update()
      if self._is_finished():
        self._group.stop()

  def _train_in_lock_step(self) -> None:
    """Acts until a batch is there, updates, publishes, and again."""
    parts = self._parts
    next_report = self._start_time + self._config.log.every_seconds
    while not (self._is_finished() or self._interrupted):
      try:
        item = parts.prefetcher.fetch(timeout=0.0)
      except replay.RateLimited:
        for worker in parts.workers:
          worker.step()
        continue
      parts.learner.step(item)
      parts.learner.flush()
      self._after_update()
      if time.perf_counter() >= next_report:
        self._report()
        next_report += self._config.log.every_seconds

  def _fill_demonstrations(self) -> None:
    """Fills their table where it is empty.

    That is at a run's start, and after a server was lost that had no
    checkpoint to begin with again.
    """
    path = self._config.demonstrations.path
    if not path:
      return
    parts = self._parts
    count = demonstrations.fill(parts.store, path, parts.env_spec.env_id)
    if count:
      self._line.say(f'Took {count} demonstrations from {path}.')

  def _after_update(self) -> None:
    self._profiler.after_update()
    now = time.perf_counter()
    if now - self._last_checkpoint >= self._config.checkpoint.every_seconds:
      self._last_checkpoint = now
      # Lock step promises that nothing happens at a time of its own.
      self._save(self._parts.learner.state(), self._config.deterministic)

  def _is_finished(self) -> bool:
    frames = self._env_steps() * self._parts.env_spec.action_repeat
    return frames >= self._config.total_env_frames

  def _env_steps(self) -> int:
    return self._saved.record.env_steps + sum(
      worker.counters.env_steps for worker in self._parts.workers
    )

  # -- reports -------------------------------------------------------------

  def _seconds(self) -> float:
    end = self._end_time or time.perf_counter()
    return self._saved.record.seconds + end - self._start_time

  def _snapshot(self, seconds: float) -> report.Snapshot:
    counters = [worker.counters for worker in self._parts.workers]
    learner = self._parts.learner.counters
    return report.Snapshot(
      seconds=seconds,
      env_steps=self._env_steps(),
      eval_steps=self._saved.record.eval_steps
      + sum(c.eval_steps for c in counters),
      updates=learner.updates,
      environment_wait=sum(c.environment_wait for c in counters),
      store_wait=sum(c.store_wait for c in counters),
      idle_env_seconds=sum(c.idle_env_seconds for c in counters),
      learner_wait=self._parts.prefetcher.wait_seconds,
      lag_sum=learner.lag_sum,
      lag_updates=learner.lag_updates,
    )

  def _collect_episodes(self) -> None:
    for worker in self._parts.workers:
      for episode in worker.stream.take_episodes():
        window = (
          self._reporter.training
          if episode.env_id < worker.num_train_envs
          else self._reporter.evaluation
        )
        window.add(episode.episode_return, episode.length)

  def _report(self) -> None:
    self._collect_episodes()
    tables = self._parts.store.info()
    table = tables[rules.TABLE]
    replayed = table.metrics()
    if demonstrations.TABLE in tables:
      name = demonstrations.TABLE
      replayed |= tables[name].metrics(name)
    row, waits = self._reporter.row(
      self._snapshot(self._seconds()),
      self._parts.learner.take_lag_max(),
      self._parts.learner.metrics() | replayed,
    )
    self._waits = waits
    self._metrics.write(row)
    self._line.update(
      report.progress_text(
        row,
        self._config.total_env_frames,
        table.filling() or waits.short(),
      )
    )

  # -- checkpoints ---------------------------------------------------------

  def _restore_keys(self) -> None:
    keys = self._saved.record.inference_keys
    if len(keys) == len(self._parts.workers):
      for worker, key in zip(self._parts.workers, keys, strict=True):
        worker.device_step.set_key(np.array(key, np.uint32))

  def _save(self, state: update_lib.LearnerState, wait: bool = True) -> None:
    reporter = self._reporter
    keys = [w.device_step.key.tolist() for w in self._parts.workers]
    now = record_lib.RunRecord(
      env_steps=self._env_steps(),
      eval_steps=self._snapshot(0.0).eval_steps,
      seconds=self._seconds(),
      starts=self._saved.record.starts + 1,
      returns=list(reporter.training.returns),
      eval_returns=list(reporter.evaluation.returns),
      inference_keys=keys,
    )
    self._saved.save(state, now, wait)

  # -- the end -------------------------------------------------------------

  def _finish(self, stuck: list[str]) -> dict[str, Any]:
    group = self._group
    group.run('profiler', self._profiler.close)
    # After an update that is not finite, the newest checkpoint stays the last
    # good one. A learner that did not end still owns its state.
    bad = group.failure and group.failure.error
    if 'learner' not in group.alive and not isinstance(
      bad, learner_lib.NonFiniteError
    ):
      group.run('last checkpoint', self._save_last)
    summary = self._summary(self._status(stuck))
    self._line.say(
      report.summary_text(
        summary,
        self._reporter.total_waits(self._snapshot(summary['seconds'])),
        self._workdir.path,
      )
    )
    workdir_lib.write_json(self._workdir.summary_json, summary)
    if group.failure or stuck:
      raise RunFailed('\n'.join([*self._failure_text(), *stuck]))
    return summary

  def _save_last(self) -> None:
    state = self._parts.learner.state()
    self._report()
    self._save(state)

  def _status(self, stuck: list[str]) -> str:
    failure = self._group.failure
    if failure is not None:
      kind = type(failure.error).__name__
      return f'failed: {kind}: {failure.error}'
    if stuck:
      return f'failed: {", ".join(self._group.alive)} did not end'
    return 'finished' if self._is_finished() else 'stopped'

  def _failure_text(self) -> list[str]:
    failure = self._group.failure
    if failure is None:
      return []
    if isinstance(failure.error, learner_lib.NonFiniteError):
      return [str(failure.error)]
    return [f'Thread {failure.thread} failed.\n{failure.text}']

  def _summary(self, status: str) -> dict[str, Any]:
    return self._reporter.summary(self._snapshot(self._seconds()), status)
