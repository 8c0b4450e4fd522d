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

from seedrl_jax.agents import base as agents
from seedrl_jax.demonstrations import folder
from seedrl_jax.distributed import coordinator, vote_client
from seedrl_jax.distributed import hosts as hosts_lib
from seedrl_jax.envs import base as envs
from seedrl_jax.learner import learner as learner_lib
from seedrl_jax.learner import prefetch as prefetch_lib
from seedrl_jax.learner import state as state_lib
from seedrl_jax.replay import base as replay
from seedrl_jax.run import build as build_lib
from seedrl_jax.run import checkpointing, config_checks, reporting
from seedrl_jax.run import layout as layout_lib
from seedrl_jax.runtime import (
  lock,
  process,
  profiler,
  progress,
  threads,
  versions,
)
from seedrl_jax.runtime import workdir as workdir_lib

# For threads to end, in which they cannot be interrupted: in all, and before
# the user is told what is waited for.
_JOIN_SECONDS = 600.0
_QUIET_JOIN_SECONDS = 10.0
# What makes the state that this host has no good one to go on from.
_SPOILED = (
  learner_lib.NonFiniteError,
  coordinator.ParametersDiffer,
  vote_client.HostLost,
)


class RunFailed(RuntimeError):
  """A thread of the run failed; the message holds its traceback."""


class System:
  """A run in a work directory."""

  def __init__(
    self,
    config: ml_collections.ConfigDict,
    workdir: str | os.PathLike[str],
    profile_updates: int = 0,
    make_streams: build_lib.MakeStream | None = None,
    line: progress.ProgressLine | None = None,
    hosts: hosts_lib.Hosts | None = None,
  ):
    """Builds the run, or the continuation of the one in `workdir`.

    Args:
      config: see `configs/base.py`.
      workdir: made where needed.
      profile_updates: updates to capture a profile of.
      make_streams: makes the environments of a stream; None: as configured.
      line: where to say how it goes; None: standard output.
      hosts: this host among those that train together; None: it is alone.

    Raises:
      ValueError: where configuration, work directory and hosts do not fit each
        other, or another run has the directory; in one sentence.
      HostLost: where another host is gone.
    """
    config_checks.check(config, agents.ranges(config))
    self._config = config
    self._line = line or progress.ProgressLine()
    self._joint = coordinator.JointRun(hosts, config) if hosts else None
    self._place = _place_of(hosts)
    self._workdir = workdir_lib.Workdir(workdir).of_host(self._place.index)
    self._workdir.create()
    with contextlib.ExitStack() as opened:
      self._lock = lock.acquire(self._workdir, self._line.say)
      opened.callback(self._lock.close)
      self._workdir.clear(self._line.say)
      self._saved = checkpointing.SavedRun(
        config, self._workdir, self._line.say, leads=not self._place.index
      )
      opened.callback(self._saved.close)
      self._parts = self._build(make_streams)
      opened.callback(self._parts.close)
      self._saved.restore_replay(self._parts.store)
      self._fill_demonstrations(at_start=True)
      self._cores = self._choose_cores()
      self._restore_keys()
      # Nothing failed: `train` closes them.
      opened.pop_all()
    self._reports = reporting.RunReports(
      config,
      self._parts,
      self._saved.record,
      self._workdir,
      self._line,
      self._place,
    )
    self._profiler = profiler.UpdateProfiler(
      self._workdir.profile, profile_updates, self._line.say
    )
    self._group = threads.ThreadGroup(
      ends=(replay.StoreClosed, envs.StreamClosed, prefetch_lib.PrefetchClosed)
    )
    self._group.on_stop(self._parts.interrupt)
    if hosts is not None:
      self._group.on_stop(hosts.ask_to_stop)
    self._last_checkpoint, self._interrupted = 0.0, False

  def _build(
    self, make_streams: build_lib.MakeStream | None
  ) -> build_lib.Parts:
    return build_lib.build(
      self._config,
      self._restore,
      lambda: self._saved.record.starts,
      make_streams,
      str(self._workdir.reverb),
      lambda: self._saved.replay_path,
      str(self._workdir.actor_socket),
      self._place,
    )

  def _restore(
    self, template: state_lib.LearnerState
  ) -> state_lib.LearnerState:
    state = self._saved.restore(template)
    return self._joint.share(state, self._saved) if self._joint else state

  def _choose_cores(self) -> list[int | None]:
    """Returns the processor of each inference thread, None for any."""
    offset = self._config.topology.inference_affinity_offset
    return [
      process.pinned_core(offset, i) for i in range(len(self._parts.workers))
    ]

  @property
  def parts(self) -> build_lib.Parts:
    """The parts of the run."""
    return self._parts

  @property
  def waits(self) -> progress.Waits | None:
    """The last report's shares of waiting; None before the first."""
    return self._reports.waits

  def stop(self) -> None:
    """Asks the run to stop, from any thread or a signal handler."""
    self._interrupted = True

  def train(self) -> dict[str, Any]:
    """Trains to the end, or until stopped; to be called once.

    Returns:
      The summary, as written to summary.json.

    Raises:
      RunFailed: where a thread failed; the summary is written all the same.
      NotWritten: where config.json cannot be written.
    """
    with contextlib.ExitStack() as opened:
      opened.callback(self._lock.close)
      opened.callback(self._saved.close)
      opened.callback(
        lambda: self._parts.release(ended=self._reports.is_finished())
      )
      # Interrupts the parts.
      opened.callback(self._group.stop)
      self._reports.start()
      if self._reports.is_finished():
        self._line.say(
          'The run has all its frames; raise --config.total_env_frames to go '
          'on.'
        )
        return self._reports.summary('finished')
      self._compile()
      # Only now: a start that fails leaves an earlier run's files as they are.
      if not self._place.index:
        self._workdir.write_config(
          layout_lib.named_config(self._config, self._parts.env_spec)
        )
        versions.note(self._workdir, self._line.say)
      self._reports.open()
      self._reports.start()
      self._last_checkpoint = self._reports.start_time
      self._group.run('main', self._train)
      self._group.stop()
      if self._interrupted:
        # A Reverb server that was just lost must be back before.
        self._line.say('Stopping, with a last checkpoint.')
      stuck = self._group.join(_QUIET_JOIN_SECONDS)
      if stuck and not self._is_host_lost():
        # A large network's update takes this long on a CPU.
        self._line.say('Waiting for the running update and batch to end.')
        stuck = self._group.join(_JOIN_SECONDS)
      self._reports.end()
      return self._finish(stuck)

  def _is_host_lost(self) -> bool:
    return self._joint is not None and bool(self._joint.hosts.lost)

  def _train(self) -> None:
    # Several hosts stop by their votes.
    if self._interrupted and not self._joint:
      return
    if self._config.deterministic:
      self._train_in_lock_step()
    else:
      self._train_in_threads()

  def _compile(self) -> None:
    """Compiles inference and update, so that nothing does in mid-run."""
    self._line.say(
      f'{self._parts.describe()}; work directory {self._workdir.path}'
    )
    start = time.perf_counter()
    for worker in self._parts.workers:
      if not self._interrupted:
        worker.compile()
    if self._joint is not None:
      self._joint.compile(self._parts)
    elif not self._interrupted:
      self._parts.learner.compile(self._parts.blank_batch)
    self._line.say(f'Compiled in {time.perf_counter() - start:.1f} s.')

  # -- threads -------------------------------------------------------------

  def _train_in_threads(self) -> None:
    parts, group = self._parts, self._group
    for i, worker in enumerate(parts.workers):
      run = functools.partial(worker.run, group.should_stop)
      group.start(f'inference-{i}', run, self._cores[i])
    group.start('prefetch', lambda: parts.prefetcher.run(group.should_stop))
    group.start('learner', self._learn_jointly if self._joint else self._learn)
    interval = self._config.log.every_seconds
    next_report = time.perf_counter() + interval
    # Signal handlers run between these waits.
    while not group.wait(min(0.1, interval)) and not self._must_stop():
      now = time.perf_counter()
      if now >= next_report:
        self._reports.write()
        self._fill_demonstrations()
        next_report = now + interval

  def _must_stop(self) -> bool:
    """Whether a signal or another host asked for it.

    Raises:
      HostLost: where another host is gone.
    """
    if self._is_host_lost():
      assert self._joint is not None
      raise vote_client.HostLost(self._joint.hosts.lost)
    wanted = self._joint is not None and self._joint.hosts.stop_wanted
    return self._interrupted or wanted

  def _learn_jointly(self) -> None:
    assert self._joint is not None
    self._joint.learn(
      self._parts,
      self._reports,
      self._is_checkpoint_due,
      self._save_checkpoint,
      self._profiler.after_update,
    )
    self._group.stop()

  def _learn(self) -> None:
    parts = self._parts
    while not self._group.should_stop():
      if parts.prefetcher.is_empty:
        # With time to spare, inference should not act with older parameters
        # until the next batch comes.
        parts.learner.flush()
      item = parts.prefetcher.get()
      parts.learner.step(item, self._reports.progress())
      self._after_update()
      if self._reports.is_finished():
        self._group.stop()

  def _train_in_lock_step(self) -> None:
    """Acts until a batch is there, updates, publishes, and again."""
    parts = self._parts
    next_report = self._reports.start_time + self._config.log.every_seconds
    while not (self._reports.is_finished() or self._interrupted):
      try:
        item = parts.prefetcher.fetch(wait=False)
      except replay.RateLimited:
        for worker in parts.workers:
          worker.step()
        continue
      parts.learner.step(item, self._reports.progress())
      parts.learner.flush()
      self._after_update()
      if time.perf_counter() >= next_report:
        self._reports.write()
        next_report += self._config.log.every_seconds

  def _fill_demonstrations(self, at_start: bool = False) -> None:
    """Fills their table where it is empty.

    That is at a run's start, and after a server was lost that had no
    checkpoint to begin with again.
    """
    path = self._config.demonstrations.path
    if not path:
      return
    parts = self._parts
    count = folder.fill(parts.store, path, parts.env_spec.env_id)
    if count:
      self._line.say(f'Took {count} demonstrations from {path}.')
    elif at_start and (text := folder.difference(parts.store, path)):
      self._line.say(text)

  def _after_update(self) -> None:
    self._profiler.after_update()
    if self._is_checkpoint_due():
      self._save_checkpoint()

  def _is_checkpoint_due(self) -> bool:
    elapsed = time.perf_counter() - self._last_checkpoint
    return elapsed >= self._config.checkpoint.every_seconds

  def _save_checkpoint(self) -> None:
    self._last_checkpoint = time.perf_counter()
    # Lock step promises that nothing happens at a time of its own.
    saved = self._saved
    save = (
      saved.save if self._config.deterministic else saved.save_in_background
    )
    try:
      save(self._parts.learner.state, self._reports.record)
    except workdir_lib.NotWritten as e:
      saved.say_next_tries(e)

  def _restore_keys(self) -> None:
    keys = self._saved.record.inference_keys
    if len(keys) == len(self._parts.workers):
      for worker, key in zip(self._parts.workers, keys, strict=True):
        worker.device_step.set_key(np.array(key, np.uint32))

  # -- the end -------------------------------------------------------------

  def _finish(self, stuck: list[str]) -> dict[str, Any]:
    group = self._group
    group.run('profiler', self._profiler.close)
    # A learner that did not end still owns its state.
    is_whole = 'learner' not in group.alive
    if is_whole and self._joint is not None:
      group.run('hosts', self._end_jointly)
    # After an update that is not finite, the newest checkpoint stays the last
    # good one.
    bad = group.failure and group.failure.error
    is_agreed = self._joint is None or self._joint.is_over
    if is_whole and is_agreed and not isinstance(bad, _SPOILED):
      group.run('last checkpoint', self._save_last)
    # Before the store is closed, which one that is under way needs; in time,
    # as closing it is what ends one that hangs.
    group.run('checkpoint', lambda: self._saved.finish(_JOIN_SECONDS))
    if self._joint is not None and self._joint.is_over:
      group.run('hosts', self._joint.part)
    others = self._joint.failures if self._joint else []
    summary: dict[str, Any] = {}
    try:
      summary = self._reports.write_summary(self._status(stuck))
    except workdir_lib.NotWritten as e:
      others = [*others, str(e)]
    if group.failure or stuck or others:
      raise RunFailed('\n'.join([*self._failure_text(), *stuck, *others]))
    return summary

  def _end_jointly(self) -> None:
    """Hears the others' last figures, where this host can still vote."""
    assert self._joint is not None
    if self._joint.hosts.lost:
      return
    failure = self._group.failure
    if failure is None or failure.thread != 'learner':
      # An update that was not finite is found here on every host.
      self._parts.learner.flush()
    elif not isinstance(failure.error, learner_lib.NonFiniteError):
      return
    text = f'{type(failure.error).__name__}: {failure.error}' if failure else ''
    self._joint.end(self._reports, text)

  def _save_last(self) -> None:
    state = self._parts.learner.state()
    self._reports.write()
    self._saved.save(lambda: state, self._reports.record)

  def _status(self, stuck: list[str]) -> str:
    failure = self._group.failure
    if failure is not None:
      kind = type(failure.error).__name__
      return f'failed: {kind}: {failure.error}'
    if stuck:
      return f'failed: {", ".join(self._group.alive)} did not end'
    if self._joint is not None and self._joint.failures:
      return f'failed: {self._joint.failures[0]}'
    return 'finished' if self._reports.is_finished() else 'stopped'

  def _failure_text(self) -> list[str]:
    failure = self._group.failure
    if failure is None:
      return []
    said = (*_SPOILED, envs.EnvironmentFailed, workdir_lib.NotWritten)
    if isinstance(failure.error, said):
      return [str(failure.error)]
    return [f'Thread {failure.thread} failed.\n{failure.text}']


def _place_of(hosts: hosts_lib.Hosts | None) -> layout_lib.Place:
  if hosts is None:
    return layout_lib.ALONE
  return layout_lib.Place(hosts.index, hosts.count)
