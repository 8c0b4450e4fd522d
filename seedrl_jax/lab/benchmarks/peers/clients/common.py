"""What all clients share: environments, the measurement and its answer.

A client runs by its path in the peer's own Python, which may lack this package.
It reads settings from standard input (`settings.py`), trains until `Meter` has
measured enough, and writes `result.json` into the current folder.
"""

import collections
import importlib.metadata
import itertools
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import envpool
import numpy as np

# Episodes whose mean return counts as what an agent has learnt.
EPISODES = 100


class Meter:
  """Measures a run: steps per second in windows, or seconds to a return."""

  def __init__(self, settings: dict[str, Any]):
    self.returns: collections.deque[float] = collections.deque(maxlen=EPISODES)
    self._target = settings['target']
    self._seconds_limit = settings['limit']
    self._windows = settings['windows']
    self._start = time.perf_counter()
    # Times and steps: when warm-up begins, when the first window does, and at
    # the end of each.
    self._marks: list[tuple[float, int]] = []
    self._reached: list[float] = []

  def more(self, steps: int) -> bool:
    """Returns whether to train on.

    Args:
      steps: taken so far. The first call is made after an update.
    """
    now = time.perf_counter()
    if self._target is None:
      return self._more_windows(now, steps)
    if len(self.returns) == EPISODES and np.mean(self.returns) >= self._target:
      self._reached = [now - self._start]
    return not self._reached and now < self._start + self._seconds_limit

  def _more_windows(self, now: float, steps: int) -> bool:
    number, seconds, warm_up = self._windows
    pause = warm_up if len(self._marks) == 1 else seconds
    last_time, last_steps = self._marks[-1] if self._marks else (-pause, -1)
    # Some peers report the same steps again.
    if now >= last_time + pause and steps > last_steps:
      self._marks.append((now, steps))
    return len(self._marks) < number + 2

  def figures(self) -> list[float]:
    """Returns the rate of each window, or the seconds if it got there."""
    if self._target is not None:
      return self._reached
    return [
      (steps - before) / (end - start)
      for (start, before), (end, steps) in itertools.pairwise(self._marks[1:])
    ]


class Envs:
  """EnvPool's environments, all at once, in Gymnasium's manner.

  Attributes:
    pool: EnvPool's own object. The step after an episode's end resets.
    returns: gets the return of each episode that ends in `step`.
  """

  def __init__(
    self,
    settings: dict[str, Any],
    num_envs: int,
    returns: collections.deque[float] | None = None,
    seed: int = 0,
  ):
    self.pool: Any = envpool.make_gymnasium(
      settings['env'],
      num_envs=num_envs,
      seed=settings['seed'] + seed,
      **settings['options'],
    )
    self.num_envs = num_envs
    self.returns = returns if returns is not None else collections.deque()
    self._sums = np.zeros(num_envs)

  def reset(self) -> np.ndarray:
    """Returns the first observations."""
    return self.pool.reset()[0]

  def step(self, actions: np.ndarray) -> tuple[np.ndarray, ...]:
    """Steps, and resets where an episode ends.

    Returns:
      observations, rewards, terminated, truncated, and the observations before
      the resets.
    """
    outputs = self.pool.step(actions)
    last, rewards, terminated, truncated = outputs[:4]
    self._sums += rewards
    ended = np.flatnonzero(terminated | truncated)
    observations = last
    if ended.size:
      observations = last.copy()
      observations[ended] = self.pool.reset(ended)[0]
      self.returns.extend(self._sums[ended].tolist())
      self._sums[ended] = 0.0
    return observations, rewards, terminated, truncated, last


def main(package: str, run: Callable[[dict[str, Any], Meter], None]) -> None:
  """Runs a client and writes its result."""
  settings = json.load(sys.stdin)
  meter = Meter(settings)
  run(settings, meter)
  version = importlib.metadata.version(package)
  with open('result.json', 'w') as file:
    json.dump({'figures': meter.figures(), 'version': version}, file)
