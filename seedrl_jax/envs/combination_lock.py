"""A task with sparse rewards: a lock with one right sequence of actions.

Random play opens a lock of length n with k actions once in k^n tries.
"""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs import registration

from seedrl_jax import types


class CombinationLock(gymnasium.Env):
  """Rewards the whole combination with 1; ends at the first wrong action.

  Observation float32 `[length]`: the number of right actions, one-hot.
  """

  # The name in curves and messages.
  spec = registration.EnvSpec('CombinationLock', f'{__name__}:make')

  def __init__(self, length: int = 12, num_actions: int = 4):
    self._combination = combination(length, num_actions)
    self.observation_space = spaces.Box(0.0, 1.0, (length,), np.float32)
    self.action_space = spaces.Discrete(num_actions)
    self._position = 0

  def reset(
    self, *, seed: int | None = None, options: dict | None = None
  ) -> tuple[np.ndarray, dict]:
    super().reset(seed=seed)
    self._position = 0
    return self._observe(), {}

  def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
    if action != self._combination[self._position]:
      return self._observe(), 0.0, True, False, {}
    if self._position + 1 == len(self._combination):
      return self._observe(), 1.0, True, False, {}
    self._position += 1
    return self._observe(), 0.0, False, False, {}

  def _observe(self) -> np.ndarray:
    observation = np.zeros(len(self._combination), np.float32)
    observation[self._position] = 1.0
    return observation


def combination(length: int, num_actions: int) -> np.ndarray:
  """Returns the lock's combination, int `[length]`; always the same."""
  return np.random.default_rng(length).integers(num_actions, size=length)


make = CombinationLock


def opener(env_spec: types.EnvSpec, seed: int) -> Callable[[Any], np.ndarray]:
  """Returns a policy that opens every lock, for `seedrl record`."""
  del seed
  (length,) = env_spec.observation.shape
  answer = combination(length, env_spec.action.num_values)
  return lambda step: answer[np.argmax(step.observation, axis=-1)]
