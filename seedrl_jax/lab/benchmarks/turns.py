"""Whole runs that pause, so that several can alternate on a machine."""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator

import ml_collections

from seedrl_jax.hosts import coordinator as coordinator_lib
from seedrl_jax.lab.benchmarks import whole
from seedrl_jax.learner import learner as learner_lib

# Of a window. Environments end their unrolls at once, and wait while a slow
# learner trains on them.
_LEAST_UPDATES, _LEAST_UNROLLS = 8, 2
# Seconds until threads are idle, in addition to the time of two updates.
_REST = 0.02

# Lets a run work for a while; returns its steps per second.
Window = Callable[[], float]


class _Gate(coordinator_lib.Coordinator):
  """Makes the threads of a run wait unless it is open."""

  def __init__(self) -> None:
    self.event = threading.Event()
    self.event.set()

  @contextlib.contextmanager
  def deciding(
    self, learner: learner_lib.Learner, figures: coordinator_lib.Figures
  ) -> Iterator[coordinator_lib.Decide]:
    with super().deciding(learner, figures) as decide:

      def decide_later(ready: bool, save_due: bool) -> coordinator_lib.Decision:
        self.event.wait()
        return decide(ready, save_due)

      yield decide_later

  def ask_to_stop(self) -> None:
    self.event.set()


def _gated(step: Callable[[], None], gate: _Gate) -> Callable[[], None]:
  """Returns a worker's step with a gate in front of it."""

  def wait_and_step() -> None:
    gate.event.wait()
    step()

  return wait_and_step


@contextlib.contextmanager
def open_run(
  config: ml_collections.ConfigDict, seconds: float
) -> Iterator[Window]:
  """Yields a run that has begun to train, and goes on in its windows only.

  Args:
    config: of a run without actors.
    seconds: of a window; those with slow updates are longer.

  Raises:
    ValueError: if there cannot be such a run; names a flag.
    RunFailed: if it failed.
  """
  gate = _Gate()
  with whole.running(config, coordinator=gate) as (run, training):
    for worker in run.parts.workers:
      worker.step = _gated(worker.step, gate)  # type: ignore[method-assign]
    counts = whole.Counts(run, training)
    counts.warm_up(0.0)

    def work(least_seconds: float, least_updates: int) -> float:
      """Opens the gate for a while; returns how long."""
      start, updates = time.perf_counter(), counts.updates()
      gate.event.set()
      whole.wait(training, least_seconds)
      counts.wait_for_update(updates + least_updates)
      gate.event.clear()
      return time.perf_counter() - start

    waited, before = run.parts.prefetcher.wait_seconds, counts.updates()
    elapsed = work(seconds, 1)
    updates = counts.updates() - before
    busy = elapsed - (run.parts.prefetcher.wait_seconds - waited)
    rest = _REST + 2 * busy / updates
    unrolls = _LEAST_UNROLLS * whole.updates_per_unroll(config)
    least = max(_LEAST_UPDATES, math.ceil(unrolls))

    def window() -> float:
      steps = counts.steps()
      elapsed = work(seconds, least)
      steps = counts.steps() - steps
      whole.wait(training, rest)
      return max(1, steps) / elapsed

    whole.wait(training, rest)
    yield window
