"""A toy with actions of two parts: press the button, and aim at the target."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

# Steps of an episode.
LENGTH = 8


class Aim(gymnasium.Env):
  """Pays 1 for the button that is lit, less the distance from the target."""

  observation_space = spaces.Box(-1.0, 1.0, (5,), np.float32)
  action_space = spaces.Dict({
    'button': spaces.Discrete(3),
    'aim': spaces.Tuple([spaces.Box(-2.0, 2.0, (2,), np.float32)]),
  })

  def _observe(self) -> np.ndarray:
    self._steps += 1
    self._button = int(self.np_random.integers(3))
    self._target = self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)
    return np.concatenate([np.eye(3)[self._button], self._target]).astype('f4')

  def reset(self, **kwargs: Any) -> Any:
    super().reset(**kwargs)
    self._steps = 0
    return self._observe(), {}

  def step(self, action: dict[str, Any]) -> Any:
    assert self.action_space.contains(action), action
    distance = np.abs(action['aim'][0] - self._target).mean()
    reward = float(action['button'] == self._button) - float(distance)
    return self._observe(), reward, self._steps > LENGTH, False, {}


def make() -> gymnasium.Env:
  """Returns the environment."""
  return Aim()
