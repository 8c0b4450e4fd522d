"""A memory task: report at the end of an episode what was shown at its start.

Without memory, no agent scores above 1 / `num_cues`.
"""

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs import registration


class Recall(gymnasium.Env):
  """Shows one of n cues, then nothing, then asks for the answer.

  Observation float32 `[num_cues + 1]`: the cue's one-hot code in the first
  step, zeros afterwards; the last entry is 1 in the step whose action is the
  answer. Only that action counts: the right cue is worth 1, and the episode
  ends.
  """

  # The name in curves and messages.
  spec = registration.EnvSpec('Recall', f'{__name__}:make')

  def __init__(
    self, num_cues: int = 4, min_delay: int = 10, max_delay: int = 20
  ):
    """`min_delay` to `max_delay` actions, drawn evenly, precede the answer."""
    self._num_cues = num_cues
    self._delays = (min_delay, max_delay)
    self.observation_space = spaces.Box(0.0, 1.0, (num_cues + 1,), np.float32)
    self.action_space = spaces.Discrete(num_cues)
    self._cue = 0
    self._left = 0

  def reset(
    self, *, seed: int | None = None, options: dict | None = None
  ) -> tuple[np.ndarray, dict]:
    super().reset(seed=seed)
    low, high = self._delays
    self._cue = int(self.np_random.integers(self._num_cues))
    self._left = int(self.np_random.integers(low, high + 1))
    observation = self._blank()
    observation[self._cue] = 1.0
    return observation, {}

  def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
    if self._left == 0:
      reward = float(action == self._cue)
      return self._blank(), reward, True, False, {}
    self._left -= 1
    observation = self._blank()
    observation[-1] = float(self._left == 0)
    return observation, 0.0, False, False, {}

  def _blank(self) -> np.ndarray:
    return np.zeros(self._num_cues + 1, np.float32)


make = Recall
