"""What the whole system does, with all stages at work."""

import contextlib
import io
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from seedrl_jax import builder, system
from seedrl_jax.benchmarks import timing
from seedrl_jax.runtime import progress


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
  streams: builder.MakeStream | None,
  windows: int,
  seconds: float,
  warm_up: float,
) -> Whole:
  """Runs a configuration for `warm_up` and then `windows` x `seconds`.

  Raises:
    system.RunFailed: where the run failed.
  """
  with running(config, streams) as (run, thread):
    return _watch(run, thread, config, windows, seconds, warm_up)


@contextlib.contextmanager
def running(
  config: Any, streams: builder.MakeStream | None = None
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

  while thread.is_alive() and parts.learner.counters.updates < 3:
    time.sleep(0.05)
  time.sleep(warm_up)
  rates, costs = [], []
  first, updates = steps(), parts.learner.counters.updates
  for _ in range(windows):
    before, cpu, start = steps(), time.process_time(), time.perf_counter()
    time.sleep(seconds)
    elapsed = time.perf_counter() - start
    taken = max(1, steps() - before)
    rates.append(taken / elapsed)
    costs.append((time.process_time() - cpu) / taken)
  trained = (parts.learner.counters.updates - updates) * per_update
  return Whole(
    timing.summarize(rates, costs),
    trained / max(1, steps() - first),
    run.waits.report() if run.waits else '',
    parts.topology,
  )
