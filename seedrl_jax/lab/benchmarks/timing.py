"""Repeated timing of a stage."""

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

from seedrl_jax.runtime import steal


class Windows(NamedTuple):
  """How long to measure.

  Attributes:
    number: of windows; results are medians over them.
    seconds: minimum length of a window.
    warm_up: seconds that a whole run works before the first window.
  """

  number: int
  seconds: float
  warm_up: float = 0.0


class Timing(NamedTuple):
  """Steps per second, and the host's cost of a step.

  Attributes:
    median, minimum, maximum: steps per second over the windows.
    cpu_seconds: median CPU seconds of this process per step, all threads.
    stolen: share of the machine's processor time that other guests took.
  """

  median: float
  minimum: float
  maximum: float
  cpu_seconds: float
  stolen: float = 0.0

  def text(self) -> str:
    """Returns 'median (min–max)'."""
    return f'{self.median:,.0f} ({self.minimum:,.0f}–{self.maximum:,.0f})'


def measure(work: Callable[[], float], windows: Windows) -> Timing:
  """Times `work`, which returns its number of steps, after one warm-up call."""
  work()
  steps = 0.0

  def keep_working() -> None:
    nonlocal steps
    end = time.perf_counter() + windows.seconds
    # At least once, even if this thread is late.
    steps += work()
    while time.perf_counter() < end:
      steps += work()

  return watch(lambda: steps, keep_working, windows.number)


def watch(
  count: Callable[[], float], wait: Callable[[], None], number: int
) -> Timing:
  """Times the steps during `number` calls of `wait`; `count` returns their sum.

  At least one step is taken to be done in each.
  """
  rates, costs = [], []
  clock = steal.StealClock()
  for _ in range(number):
    before, cpu, start = count(), time.process_time(), time.perf_counter()
    wait()
    elapsed = time.perf_counter() - start
    steps = (count() - before) or 1
    rates.append(steps / elapsed)
    costs.append((time.process_time() - cpu) / steps)
  return Timing(
    statistics.median(rates),
    min(rates),
    max(rates),
    statistics.median(costs),
    clock.share(),
  )
