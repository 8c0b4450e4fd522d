"""One run from its configuration to its summary."""

import contextlib
import dataclasses
import os
from collections.abc import Callable
from typing import Any

import ml_collections

from seedrl_jax import types
from seedrl_jax.hosts import coordinator as coordinator_lib
from seedrl_jax.learner import learner as learner_lib
from seedrl_jax.networks import observations
from seedrl_jax.replay import table_configs
from seedrl_jax.run import callbacks, checkpointing, opening, reporting
from seedrl_jax.run import layout as layout_lib
from seedrl_jax.run import plan as plan_lib
from seedrl_jax.run import training as training_lib
from seedrl_jax.runtime import (
  file_io,
  process,
  progress,
  report,
  settings,
  threads,
)
from seedrl_jax.runtime import workdir as workdir_lib

# Errors after which this host's state is not good to go on from.
_SPOILED = (
  learner_lib.NonFiniteError,
  coordinator_lib.ParametersDiffer,
  coordinator_lib.HostLost,
)


class RunFailed(types.Explained, RuntimeError):
  """A thread of the run failed; the message holds its traceback."""


@dataclasses.dataclass(eq=False)
class System:
  """A run in a work directory; `parts` and `reporter` are of this host.

  Builds the run, or its continuation from what is in `workdir`: checks the
  configuration, plans the run, locks the work directory, restores the learner's
  state, opens the parts around it and restores the replay, in this order.

  Attributes:
    profile_updates: number of updates to capture a profile of.
    make_streams: makes the environments of a stream; None: as configured.
    line: shows the progress.
    coordinator: of this host with others; None: it is alone.
    on_report: takes each report; returns False to stop the run.
    init_from: work directory of a run, whose parameters a new run takes.
    init_optimizer: whether it takes the state of the optimiser, too.

  Raises:
    ValueError: if configuration, work directory, hosts and JAX do not fit each
      other, or another run has the directory.
    HostLost: if another host is gone.
  """

  config: ml_collections.ConfigDict
  workdir: str | os.PathLike[str]
  profile_updates: int = 0
  make_streams: opening.MakeStream | None = None
  line: progress.ProgressLine = dataclasses.field(
    default_factory=progress.ProgressLine
  )
  coordinator: coordinator_lib.Coordinator | None = None
  on_report: Callable[[callbacks.Report], Any] | None = None
  init_from: str | os.PathLike[str] | None = None
  init_optimizer: bool = False

  def __post_init__(self) -> None:
    layout_lib.check(self.config)
    if self.init_optimizer and not self.init_from:
      raise ValueError(
        '--init_optimizer: there is no run to take the optimiser of; give '
        '--init_from.'
      )
    self.config = self.config.copy_and_resolve_references()
    coordinator = self.coordinator or coordinator_lib.Coordinator()
    if self.config.deterministic:
      # Before the coordinator may open JAX's devices.
      process.make_gpu_deterministic()
    coordinator.check_start(self.config)
    self._coordinator = coordinator
    self._workdir = workdir_lib.Workdir(self.workdir).of_host(coordinator.index)
    with contextlib.ExitStack() as cleanup:
      self._restore_and_open(cleanup)
      self._connect()
      # Nothing failed: `train` closes them.
      cleanup.pop_all()

  def _restore_and_open(self, cleanup: contextlib.ExitStack) -> None:
    # Before the lock, so that what it rejects leaves no folder.
    plan = plan_lib.make_plan(self.config, self._coordinator.placement())
    progress.ready('plan')
    # Also names a factory's environment, or all tasks.
    self.config.env.id = plan.env_spec.env_id
    self._lock = self._workdir.acquire(self.line.say)
    cleanup.callback(self._lock.close)
    checkpoints = checkpointing.RunCheckpoints(
      self.config,
      self._workdir,
      self.line.say,
      leads=not self._coordinator.index,
    )
    if checkpoints.storage.steps():
      observations.check_release(
        self._workdir, self.config.network, plan.env_spec
      )
    state = plan.initial_state()
    if self.init_from and not self._coordinator.index:
      if checkpoints.storage.steps():
        self.line.say('--init_from is for a new run: this one goes on.')
      else:
        state = checkpointing.warm_start(
          state,
          self.config,
          self.init_from,
          self.init_optimizer,
          self.line.say,
        )
    state = checkpoints.restore(state)
    progress.ready('state')
    shared, state = self._coordinator.share(
      dataclasses.asdict(checkpoints.record), state
    )
    # Processes with batches of their own save their replays one by one.
    is_exact = plan.placement.shares_batch
    checkpoints.follow(shared, int(state.step), is_exact)
    self._checkpoints = checkpoints
    self.parts = opening.Opener(
      plan,
      state,
      self.make_streams,
      checkpoints.record,
      self._workdir,
      checkpoints.replay_path,
    ).open()
    cleanup.callback(self.parts.close)

  def _connect(self) -> None:
    config, parts, say = self.config, self.parts, self.line.say
    self._writer = checkpointing.CheckpointWriter(
      self._checkpoints.storage,
      self._checkpoints.restore_replay(parts.store),
      say,
    )
    if parts.gate is not None:
      parts.gate.take_over(parts.store.info()[table_configs.TABLE].size)
    training_lib.fill_demonstrations(parts, say, at_start=True)
    self._counters = reporting.RunCounters(
      config, parts, self._checkpoints.record
    )
    self.reporter = reporting.RunReporter(
      self._counters, self._workdir, self.line
    )
    self._best = None
    if config.checkpoint.keep_best and not self._coordinator.index:
      self._best = checkpointing.BestCheckpoint(
        self._workdir, say, self.reporter.evaluation
      )
    self._training = training_lib.Training(
      self._coordinator,
      self.reporter,
      self._writer,
      self.profile_updates,
      self.on_report,
      self._best,
    )

  def stop(self) -> None:
    """Asks the run to stop, from any thread or a signal handler."""
    self._training.interrupt()

  def train(self) -> report.Summary:
    """Trains to the end, or until stopped; returns the summary. Call it once.

    Raises:
      RunFailed: if a thread failed; the summary is written all the same.
      SystemExit, KeyboardInterrupt: as `on_report` did, after a checkpoint.
      NotWritten: if config.json cannot be written.
      NotOpened: if a writer of the metrics cannot begin.
    """
    with contextlib.ExitStack() as cleanup:
      cleanup.callback(self._lock.close)
      cleanup.callback(self.reporter.close)
      cleanup.callback(self._writer.finish)
      cleanup.callback(
        lambda: self.parts.release(ended=self._counters.is_finished())
      )
      # Interrupts the parts.
      cleanup.callback(self._training.group.stop)
      if self._counters.is_finished():
        self.line.say(
          'The run is finished: nothing was trained or changed. Raise '
          '--config.total_env_frames, or --config.target_return if it has one, '
          'to go on.'
        )
        return self.reporter.summary('finished')
      is_new = not self._checkpoints.storage.steps()
      if is_new:
        # A kill while it compiles must not lose it.
        self._write_config()
      self._training.compile()
      self.reporter.open()
      if not is_new:
        # Only now, as a start that fails must leave it as it was.
        self._write_config()
      self._counters.begin()
      self._training.group.run('main', self._training.run)
      stuck = self._training.join()
      self._counters.end()
      return self._finish(stuck)

  def _write_config(self) -> None:
    if not self._coordinator.index:
      self._workdir.write_config(self.config)
      self._workdir.write_env_spec(self.parts.plan.env_spec)

  def _finish(self, stuck: list[str]) -> report.Summary:
    """Saves a last checkpoint and the summary; raises if anything failed."""
    group, coordinator = self._training.group, self._coordinator
    group.run('profiler', self._training.trace.close)
    # A learner that did not end still owns its state.
    if 'learner' not in group.alive:
      self._end_learning()
    # Before the store is closed, which a checkpoint needs; with a time-out, as
    # only closing the store ends a checkpoint that hangs.
    group.run(
      'checkpoint', lambda: self._writer.finish(training_lib.JOIN_SECONDS)
    )
    if self._best is not None:
      self._best.describe()
    group.run('hosts', coordinator.wait_saved)
    others = list(coordinator.failures)
    summary = self.reporter.summary(self._status(stuck))
    try:
      self.reporter.write_summary(summary)
    except file_io.NotWritten as e:
      others.append(str(e))
    # After all is saved, as an environment may hang.
    group.run('environments', self.parts.close_streams)
    if coordinator.lost:
      # An update that waits for a host that is gone says nothing more.
      stuck = []
    # The first failure comes last, where a user looks.
    if failed := [*stuck, *others, *_failure_text(group.failure)]:
      raise RunFailed('\n'.join(failed)) from self._training.exit_error
    if self._training.exit_error is not None:
      raise self._training.exit_error
    return summary

  def _end_learning(self) -> None:
    """Ends the learning on all hosts; saves a last checkpoint if it is good."""
    group, learner = self._training.group, self.parts.learner
    failure = group.failure
    group.run(
      'hosts', lambda: self._coordinator.end(learner, self._counters, failure)
    )
    # After an update that is not finite, the newest checkpoint is good.
    bad = group.failure and group.failure.error
    if self._coordinator.agreed and not isinstance(bad, _SPOILED):
      # One that fails must not cost the others.
      group.run('last episodes', self.reporter.collect_episodes)
      taken = learner.state, self.reporter.record
      if (best := self._best) is not None:
        group.run('best checkpoint', lambda: best.save_if_due(*taken))
      group.run('last checkpoint', lambda: self._writer.save(*taken))
      if group.failure is None or learner.counters.updates:
        group.run('last report', self.reporter.write)

  def _status(self, stuck: list[str]) -> str:
    group = self._training.group
    if group.failure is not None:
      kind = type(group.failure.error).__name__
      return f'failed: {kind}: {group.failure.error}'
    if stuck:
      return f'failed: {", ".join(group.alive)} did not end'
    if self._coordinator.failures:
      return f'failed: {self._coordinator.failures[0]}'
    return 'finished' if self._counters.is_finished() else 'stopped'


def _failure_text(failure: threads.Failure | None) -> list[str]:
  if failure is None:
    return []
  if isinstance(failure.error, types.Explained):
    return [str(failure.error)]
  return [
    f'Thread {failure.thread} failed.\n{failure.text}The run has failed: '
    f'{settings.error_text(failure.error)}.'
  ]
