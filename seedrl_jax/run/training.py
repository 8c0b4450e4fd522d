"""The threads of a run, and the loop that updates until it ends."""

import contextlib
import dataclasses
import functools
import io
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax

from seedrl_jax.demonstrations import folder
from seedrl_jax.envs import base as envs
from seedrl_jax.evaluation import playing, scoring
from seedrl_jax.hosts import coordinator as coordinator_lib
from seedrl_jax.learner import prefetch as prefetch_lib
from seedrl_jax.replay import base as replay
from seedrl_jax.replay import table_configs
from seedrl_jax.run import (
  callbacks,
  checkpointing,
  opening,
  overview,
  reporting,
)
from seedrl_jax.runtime import process, progress, threads

# Seconds for threads to end: in all, and before the user is informed.
JOIN_SECONDS = 600.0
_QUIET_JOIN_SECONDS = 10.0
# Seconds of a learner without a batch before a run with all frames ends: one
# may be on its way from a store.
_STARVED_SECONDS = 0.3
# Between two looks at the threads.
_PAUSE_SECONDS = 0.05
# Updates before a trace, which then shows the steady state.
_WARM_UP = 20
# Waits for a batch; returns None if this host wants to stop.
_NextBatch = Callable[[], prefetch_lib.Prefetched | None]


@dataclasses.dataclass(eq=False)
class Training:
  """Acts and learns until the run has all frames or is `interrupted`.

  Starts nothing at first; raises `ValueError` if a processor cannot be had. Of
  `profile_updates` updates there will be a trace in the work directory.
  `on_report` takes each report's results; it returns False to stop the run. So
  does `sys.exit` or a `KeyboardInterrupt` in it, kept as `exit_error`. Setting
  `is_save_due` asks for a checkpoint after the next update.
  """

  coordinator: coordinator_lib.Coordinator
  reporter: reporting.RunReporter
  writer: checkpointing.CheckpointWriter
  profile_updates: int
  on_report: Callable[[callbacks.Report], Any] | None
  best: checkpointing.BestCheckpoint | None

  def __post_init__(self) -> None:
    self.interrupted = False
    self.exit_error: SystemExit | KeyboardInterrupt | None = None
    self._counters = self.reporter.counters
    self._config, self._parts = self._counters.config, self._counters.parts
    self.is_save_due = False
    self._seen_updates = 0
    self._starved_since: float | None = None
    self.trace = contextlib.ExitStack()
    offset = self._config.topology.inference_affinity_offset
    self._cores = [
      process.pinned_core(offset, i) for i in range(len(self._parts.workers))
    ]
    self._next_report = self._last_save = 0.0
    self.group = threads.ThreadGroup(
      ends=(replay.StoreClosed, envs.StreamClosed)
    )
    self.group.on_stop(self._parts.interrupt)
    self.group.on_stop(self.coordinator.ask_to_stop)

  def interrupt(self) -> None:
    """Asks to stop, from any thread or a signal handler."""
    self.interrupted = True
    if self._parts.plan.lock_step:
      # Its only thread may wait for an environment that hangs.
      for worker in self._parts.workers:
        worker.interrupt()

  def compile(self) -> None:
    """Compiles inference and update, so that nothing compiles in mid-run."""
    parts, say = self._parts, self.reporter.line.say
    for line in overview.lines(self._config, parts, self.reporter.workdir.path):
      say(line)
    start = time.perf_counter()
    for worker in parts.workers:
      if not self.interrupted:
        worker.compile()
    progress.ready('acting')
    self.coordinator.compile(
      parts.plan.updater.connect,
      lambda: parts.learner.compile(parts.plan.blank_batch()),
      is_needed=not self.interrupted,
      replay_address=parts.store.address or '',
    )
    progress.ready('updating')
    say(f'Compiled in {time.perf_counter() - start:.1f} s.')

  def run(self) -> None:
    """Trains in threads or in lock step; returns when it is time to stop.

    Raises:
      HostLost: if another host is gone.
      Exception: if lock step, a report or `on_report` fails.
    """
    if self.interrupted:
      # The threads still start, as other hosts wait for this one's vote.
      self.group.stop()
    self._last_save = time.perf_counter()
    self._next_report = self._last_save + self._config.log.every_seconds
    if self._parts.plan.lock_step:
      self._learn(self._batch_in_lock_step)
      return
    self._start_threads()
    pause = min(_PAUSE_SECONDS, self._config.log.every_seconds)
    # Signal handlers run between these waits.
    while not self.group.wait(pause):
      others = self.coordinator.must_stop()
      if self.interrupted or others or self._is_starved():
        return
      if self._report_if_due():
        fill_demonstrations(self._parts, self.reporter.line.say)

  def join(self) -> list[str]:
    """Stops the threads; returns the stacks of those that do not end."""
    say = self.reporter.line.say
    self.group.stop()
    if self.interrupted:
      # A Reverb server that was just lost must come back for it.
      say('Stopping, with a last checkpoint.')
    stuck = self.group.join(_QUIET_JOIN_SECONDS)
    if stuck and not self.coordinator.lost:
      # A large network's update takes this long on a CPU.
      say('Waiting for the running update and batch to end.')
      stuck = self.group.join(JOIN_SECONDS)
    return stuck

  def _start_threads(self) -> None:
    parts, group = self._parts, self.group

    def must_end_acting() -> bool:
      # One unroll may be longer than the run.
      return group.should_stop() or self._counters.is_finished()

    for i, worker in enumerate(parts.workers):
      act = functools.partial(worker.run, must_end_acting)
      group.start(f'inference-{i}', act, self._cores[i])
    group.start('prefetch', lambda: parts.prefetcher.run(group.should_stop))
    group.start('learner', lambda: self._learn(self._batch_from_threads))

  def _is_starved(self) -> bool:
    """Whether the run has its frames, and the learner waits for no batch."""
    is_starved = (
      self._counters.is_finished()
      and not self._acts()
      and self._parts.prefetcher.is_starved
      and not self._has_batch()
    )
    if not is_starved:
      self._starved_since = None
      return False
    now = time.perf_counter()
    self._starved_since = self._starved_since or now
    return now - self._starved_since >= _STARVED_SECONDS

  def _acts(self) -> bool:
    """Whether an inference thread may bring steps.

    One for actors waits for ever if there are none.
    """
    parts = self._parts
    count = len(parts.workers)
    if parts.actors is not None and not parts.actors.num_connected:
      # The streams of actors are the last.
      count -= len(parts.actors.streams)
    return any(f'inference-{i}' in self.group.alive for i in range(count))

  def _has_batch(self) -> bool:
    """Whether a queue holds a whole batch."""
    if self._config.replay.sampler != 'fifo':
      return False
    placement = self._parts.plan.placement
    divisor = placement.count if placement.shares_batch else 1
    size = self._parts.store.info()[table_configs.TABLE].size
    return size * divisor >= self._config.batch_size

  def _report_if_due(self) -> bool:
    now = time.perf_counter()
    if now < self._next_report:
      return False
    results = callbacks.Report.make(
      self.reporter.write(), self.reporter.row, run=self
    )
    try:
      if self.on_report and self.on_report(results) is False:
        self.interrupted = True
    except (SystemExit, KeyboardInterrupt) as e:
      if self.interrupted and isinstance(e, KeyboardInterrupt):
        # A second Ctrl-C waits for nothing.
        raise
      self.exit_error = e
      self.interrupted = True
    self._next_report = now + self._config.log.every_seconds
    return True

  def evaluate(self, **options: Any) -> scoring.Evaluation:
    """Plays with the parameters that act now; see `callbacks.Report`."""
    parts = self._parts
    device = parts.plan.topology.inference[0]
    version, params = parts.publisher.latest(device)
    return scoring.play(
      playing.Player(parts.plan.agent, params, version),
      self._config,
      parts.plan.env_spec,
      scoring.EvaluationOptions(**options),
      # The run has the progress line.
      progress.ProgressLine(io.StringIO()),
    )

  def _learn(self, next_batch: _NextBatch) -> None:
    """Updates until the hosts decide to stop, then stops the threads."""
    learner, config = self._parts.learner, self._config
    with self.coordinator.deciding(learner, self._counters) as decide:
      while True:
        item = next_batch()
        if not self._seen_updates:
          progress.ready('first batch')
        age = time.perf_counter() - self._last_save
        is_old = age >= config.checkpoint.every_seconds
        save_due = is_old or self.is_save_due
        decision = decide(item is not None, save_due)
        if item is None:
          break
        if not decision.update:
          item.sample.release()
          break
        learner.step(item, decision.progress)
        if not self._seen_updates:
          progress.ready('first update')
        self._trace()
        if self.best is not None:
          self.best.save_if_due(learner.state, self.reporter.record)
        if decision.save:
          self.is_save_due = False
          self._last_save = time.perf_counter()
          # In lock step nothing may depend on timing.
          self.writer.save_midway(
            learner.state,
            self.reporter.record,
            wait=self._parts.plan.lock_step,
          )
    self.group.stop()

  def _trace(self) -> None:
    self._seen_updates += 1
    if not self.profile_updates:
      return
    if self._seen_updates == _WARM_UP:
      self.trace.enter_context(self._tracing())
    elif self._seen_updates == _WARM_UP + self.profile_updates:
      self.trace.close()

  @contextlib.contextmanager
  def _tracing(self) -> Iterator[None]:
    folder = self.reporter.workdir.profile
    with jax.profiler.trace(str(folder)):
      yield
    count = self._seen_updates - _WARM_UP
    self.reporter.line.say(f'Trace of {count} updates: {folder}')

  def _batch_from_threads(self) -> prefetch_lib.Prefetched | None:
    prefetcher = self._parts.prefetcher
    if self._counters.is_finished():
      return None
    if prefetcher.is_empty:
      # There is time to spare: publish now, so that inference does not act with
      # older parameters until the next batch.
      self._parts.learner.flush()
    try:
      return prefetcher.get()
    except replay.StoreClosed:
      return None

  def _batch_in_lock_step(self) -> prefetch_lib.Prefetched | None:
    """Publishes the last update, and acts until there is a batch."""
    parts = self._parts
    parts.learner.flush()
    self._report_if_due()
    while not (self._counters.is_finished() or self.interrupted):
      try:
        return parts.prefetcher.fetch(wait=False)
      except replay.RateLimited:
        # They are closed to stop.
        with contextlib.suppress(envs.StreamClosed):
          for worker in parts.workers:
            worker.step()
    return None


def fill_demonstrations(
  parts: opening.Parts, say: Callable[[str], None], at_start: bool = False
) -> None:
  """Fills the demonstrations' table if a start or lost server left it empty.

  `at_start` warns if it holds others. Nothing happens without a folder.
  """
  path = parts.plan.config.demonstrations.path
  if not path:
    return
  count = folder.fill(parts.store, path, parts.plan.env_spec.env_id)
  if count:
    say(f'Took {count} demonstrations from {path}.')
  elif at_start and (text := folder.difference(parts.store, path)):
    say(text)
