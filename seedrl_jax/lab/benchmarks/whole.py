"""Times the whole system and compares it with its stages alone."""

import collections
import contextlib
import io
import math
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent import futures
from typing import Any, NamedTuple

import ml_collections

from seedrl_jax.hosts import coordinator as coordinator_lib
from seedrl_jax.lab import tables
from seedrl_jax.lab.benchmarks import ceilings, timing
from seedrl_jax.learner import topology as topology_lib
from seedrl_jax.run import opening, system
from seedrl_jax.runtime import progress, report

# Before the first window, and in each.
_FIRST_UPDATES, _LEAST_UPDATES = 3, 4
_POLL = 0.01


class Case(NamedTuple):
  """What to measure.

  Attributes:
    streams: makes the environments; None makes the configured ones.
  """

  name: str
  config: ml_collections.ConfigDict
  streams: opening.MakeStream | None = None


class Whole(NamedTuple):
  """Timing of a run.

  Attributes:
    steps: environment steps per second.
    trained_share: steps trained on / steps taken, over the windows; of a
      replay the mean number of times that a step is trained on.
    waits: report on which stage waited for which.
  """

  steps: timing.Timing
  trained_share: float
  waits: str
  topology: topology_lib.Topology


def measure(
  case: Case, stages: timing.Windows, windows: timing.Windows
) -> tables.Row:
  """Times the stages and the whole system; prints them; returns a table row.

  Args:
    stages: windows of each stage.
    windows: of the whole.

  Raises:
    system.RunFailed: if the run failed.
  """
  alone = measure_stages(case, stages)
  whole = run(case, windows)
  print(
    f'\nwhole system: {whole.steps.text()} steps/s, trained on '
    f'{whole.trained_share:.2f} of the steps\n{whole.waits}',
    flush=True,
  )
  return row(case, whole, alone)


def measure_stages(case: Case, windows: timing.Windows) -> ceilings.Ceilings:
  """Times a case's stages and prints them."""
  config = case.config
  print(
    f'\n{case.name}, {config.env.num_envs} environments '
    f'({config.replay.backend} store)',
    flush=True,
  )
  timings = ceilings.measure(config, case.streams, windows)
  tables.show(timings.rows())
  return timings


def row(case: Case, whole: Whole, alone: ceilings.Ceilings) -> tables.Row:
  """Returns the table row of a run and its stages alone."""
  timings = {
    'environments, steps/s': alone.env,
    '+ inference': alone.env_and_inference,
    '+ training': whole.steps,
  }
  return {
    'case': case.name,
    'envs': str(case.config.env.num_envs),
    'store': case.config.replay.backend,
    **{name: timed.text() for name, timed in timings.items()},
    'of the ideal': f'{whole.steps.median / alone.ideal(whole.topology):.2f}',
    'steal': f'{max(timed.stolen for timed in timings.values()):.0%}',
  }


def run(case: Case, windows: timing.Windows) -> Whole:
  """Times the whole system; raises system.RunFailed if the run failed."""
  with running(case.config, case.streams) as (started, training):
    return _watch(started, training, case.config, windows)


@contextlib.contextmanager
def running(
  config: ml_collections.ConfigDict,
  streams: opening.MakeStream | None = None,
  coordinator: coordinator_lib.Coordinator | None = None,
) -> Iterator[tuple[system.System, futures.Future[Any]]]:
  """Yields a run that trains, and its end; stops it at the end.

  For `streams` and `coordinator` see `system.System`.

  Raises:
    system.RunFailed: at the end, if the run failed.
  """
  with tempfile.TemporaryDirectory() as workdir:
    run = system.System(
      config,
      workdir,
      make_streams=streams,
      line=progress.ProgressLine(io.StringIO()),
      coordinator=coordinator,
    )
    with futures.ThreadPoolExecutor(1, 'run') as executor:
      training = executor.submit(run.train)
      try:
        yield run, training
      finally:
        run.stop()
        training.result()


def seconds_to(
  config: ml_collections.ConfigDict, target: float, limit: float
) -> float | None:
  """Returns how long a run takes from its building to a mean return.

  Args:
    target: mean return of the last 100 training episodes.
    limit: seconds after which the result is None.
  """
  start = time.perf_counter()
  returns: collections.deque[float] = collections.deque(maxlen=report.WINDOW)
  # Reports would take the episodes.
  config.log.every_seconds = 1e9
  with running(config) as (started, training):
    while time.perf_counter() - start < limit:
      wait(training, _POLL)
      for worker in started.parts.workers:
        episodes = worker.take_episodes()
        returns.extend(e.episode_return for e in episodes)
      if len(returns) == report.WINDOW and statistics.mean(returns) >= target:
        return time.perf_counter() - start
  return None


def updates_per_unroll(config: ml_collections.ConfigDict) -> float:
  """Returns how many updates are due when all environments end an unroll."""
  steps = config.env.num_envs * config.unroll_length
  return steps / ceilings.steps_per_update(config)


def wait(training: futures.Future[Any], seconds: float) -> None:
  """Waits for `seconds`; raises RuntimeError at once if the run ends."""
  if futures.wait([training], seconds).done:
    raise RuntimeError('The run ended before it was measured.')


class Counts:
  """Counts the steps and updates of a run."""

  def __init__(self, run: system.System, training: futures.Future[Any]):
    self._run, self._training = run, training

  def steps(self) -> int:
    """Returns the steps of the training environments."""
    workers = self._run.parts.workers
    return sum(worker.counters.env_steps for worker in workers)

  def updates(self) -> int:
    """Returns the finished updates, each of a batch."""
    # The counter is of optimiser steps.
    parts = self._run.parts
    return parts.learner.counters.updates // parts.plan.agent.updates_per_batch

  def wait_for_update(self, number: int) -> int:
    """Waits for `number` updates, or the end; returns how many there are."""
    while not self._training.done() and self.updates() < number:
      time.sleep(_POLL)
    return self.updates()

  def warm_up(self, seconds: float) -> None:
    """Waits for the first updates, and then for `seconds`."""
    self.wait_for_update(_FIRST_UPDATES)
    wait(self._training, seconds)


def _watch(
  run: system.System,
  training: futures.Future[Any],
  config: ml_collections.ConfigDict,
  windows: timing.Windows,
) -> Whole:
  counts = Counts(run, training)
  per_update = config.batch_size * config.unroll_length
  counts.warm_up(windows.warm_up)
  # Windows begin and end at updates, and have all that came of as many unrolls
  # of each environment: environments step in bursts if updates are slow, and
  # updates come in bursts as unrolls end at once.
  period = max(_LEAST_UPDATES, math.ceil(updates_per_unroll(config)))
  begin = latest = counts.wait_for_update(counts.updates() + 1)
  first = counts.steps()

  def wait_for_window() -> None:
    nonlocal latest
    wait(training, windows.seconds)
    periods = (counts.updates() - latest) // period + 1
    latest = counts.wait_for_update(latest + periods * period)

  timed = timing.watch(counts.steps, wait_for_window, windows.number)
  return Whole(
    timed,
    (latest - begin) * per_update / max(1, counts.steps() - first),
    run.reporter.waits.report() if run.reporter.waits else '',
    run.parts.plan.topology,
  )
