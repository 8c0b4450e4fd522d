"""An environment of one's own: move along a line to a goal."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Line(gymnasium.Env):
  """Observes position and goal; goes left, stays or goes right."""

  observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
  action_space = spaces.Discrete(3)

  def __init__(self, length: int):
    self._length = length

  def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
    super().reset(**kwargs)
    self._place = self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)
    self._steps = 0
    return self._place.copy(), {}

  def step(
    self, action: int
  ) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
    self._place[0] = np.clip(self._place[0] + 0.1 * (action - 1), -1.0, 1.0)
    self._steps += 1
    reward = -abs(float(self._place[0] - self._place[1]))
    # It never terminates: the end after `length` steps is a truncation.
    return self._place.copy(), reward, False, self._steps == self._length, {}


def make(length: int = 30) -> gymnasium.Env:
  """Returns the environment; --config.env.factory=my_env:make names this."""
  return Line(length)
