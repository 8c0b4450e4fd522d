"""An environment with an action mask: empty three piles, one piece a step."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Piles(gymnasium.Env):
  """Three piles of up to five pieces; an empty pile cannot be chosen."""

  def __init__(self) -> None:
    self.action_space = spaces.Discrete(3)
    self.observation_space = spaces.Dict({
      'piles': spaces.Box(0.0, 5.0, (3,), np.float32),
      'action_mask': spaces.MultiBinary(3),
    })

  def _observe(self) -> dict[str, np.ndarray]:
    mask = (self._piles > 0).astype(np.int8)
    return {'piles': self._piles.copy(), 'action_mask': mask}

  def reset(self, **kwargs):
    super().reset(**kwargs)
    self._piles = self.np_random.integers(1, 6, 3).astype(np.float32)
    return self._observe(), {}

  def step(self, action):
    # The highest pile is worth most.
    reward = float(self._piles[action] == self._piles.max())
    self._piles[action] -= 1.0
    terminated = not self._piles.any()  # Then no action is legal.
    return self._observe(), reward, bool(terminated), False, {}


def make() -> gymnasium.Env:
  """Returns the environment; --config.env.factory=my_masked_env:make."""
  return Piles()
