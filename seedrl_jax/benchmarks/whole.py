"""What the whole system does, with all stages at work."""

import contextlib
import io
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from seedrl_jax.benchmarks import timing
from seedrl_jax.run import build, system
from seedrl_jax.runtime import progress

# Before the first window, and in each.
_FIRST_UPDATES, _LEAST_UPDATES = 3, 4
_POLL = 0.01


class Whole(NamedTuple):
  """Timing of a run.

  Attributes:
    steps: environment steps per second.
    trained_share: steps trained on / steps taken, over the windows.
    waits: what waited for what, in a line.
    topology: of the run.
  """

  steps: timing.Timing
  trained_share: float
  waits: str
  topology: Any


def measure(
  config: Any,
  streams: build.MakeStream | None,
  windows: int,
  seconds: float,
  warm_up: float,
) -> Whole:
  """Runs a configuration for `warm_up` and then `windows` x `seconds`.

  A window is longer where its least number of updates takes longer.

  Raises:
    system.RunFailed: where the run failed.
  """
  with running(config, streams) as (run, thread):
    return _watch(run, thread, config, windows, seconds, warm_up)


@contextlib.contextmanager
def running(
  config: Any, streams: build.MakeStream | None = None
) -> Iterator[tuple[system.System, threading.Thread]]:
  """Yields a run that trains, and its thread; stops it in the end.

  Raises:
    system.RunFailed: in the end, where the run failed.
  """
  with tempfile.TemporaryDirectory() as workdir:
    run = system.System(
      config,
      workdir,
      make_streams=streams,
      line=progress.ProgressLine(io.StringIO()),
    )
    errors: list[BaseException] = []
    thread = threading.Thread(target=_train, args=(run, errors), name='run')
    thread.start()
    try:
      yield run, thread
    finally:
      run.stop()
      thread.join()
    if errors:
      raise errors[0]


def _train(run: system.System, errors: list[BaseException]) -> None:
  try:
    run.train()
  except BaseException as e:  # Handed to the thread that waits for this one.
    errors.append(e)


def _watch(
  run: system.System,
  thread: threading.Thread,
  config: Any,
  windows: int,
  seconds: float,
  warm_up: float,
) -> Whole:
  parts = run.parts
  per_update = config.batch_size * config.unroll_length

  def steps() -> int:
    return sum(worker.counters.env_steps for worker in parts.workers)

  def wait_for_update(number: int) -> int:
    """Returns when there have been as many, and how many there were."""
    while thread.is_alive() and parts.learner.counters.updates < number:
      time.sleep(_POLL)
    return parts.learner.counters.updates

  wait_for_update(_FIRST_UPDATES)
  time.sleep(warm_up)
  rates, costs = [], []
  # Where an update takes seconds, environments step in bursts between them; a
  # window that began and ended anywhere would have more of them or fewer.
  updates = latest = wait_for_update(parts.learner.counters.updates + 1)
  first = steps()
  for _ in range(windows):
    before, cpu, start = steps(), time.process_time(), time.perf_counter()
    time.sleep(seconds)
    least = max(latest + _LEAST_UPDATES, parts.learner.counters.updates + 1)
    latest = wait_for_update(least)
    elapsed = time.perf_counter() - start
    taken = max(1, steps() - before)
    rates.append(taken / elapsed)
    costs.append((time.process_time() - cpu) / taken)
  trained = (latest - updates) * per_update
  return Whole(
    timing.summarize(rates, costs),
    trained / max(1, steps() - first),
    run.waits.report() if run.waits else '',
    parts.topology,
  )
