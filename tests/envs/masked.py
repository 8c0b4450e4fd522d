"""Environments with action masks, in Gymnasium and in JAX.

A legal action pays 1. An illegal one raises, or pays NaN, which stops a run.
"""

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from seedrl_jax import types
from seedrl_jax.device_envs import batching

# Of an episode, which ends earlier in a step out of eight.
_LIMIT = 6


class Masked(gymnasium.Env):
  """Observes two numbers; which actions are legal is random.

  Nothing is legal in the last step of an episode that terminates.

  Args:
    place: of the mask: 'observation', 'info', or 'none'.
    several: whether actions are three choices.
    hybrid: whether actions have continuous numbers, too.
    stuck_after: step from which nothing is legal.
    size: of the mask; 0 for the right one.
  """

  def __init__(
    self,
    place: str = 'observation',
    several: bool = False,
    hybrid: bool = False,
    stuck_after: int = 1 << 30,
    size: int = 0,
  ) -> None:
    self.action_space = (
      spaces.MultiDiscrete([4, 4, 4]) if several else spaces.Discrete(4)
    )
    if hybrid:
      number = spaces.Box(-1.0, 1.0, (2,), np.float32)
      self.action_space = spaces.Dict({
        'aim': number,
        'choice': self.action_space,
        'power': number,
      })
    self._shape = (3, 4) if several else (size or 4,)
    box = spaces.Box(-9.0, 9.0, (2,), np.float32)
    self.observation_space = box
    if place == 'observation':
      mask = spaces.MultiBinary(self._shape)
      self.observation_space = spaces.Dict({'x': box, 'action_mask': mask})
    self._place = place
    self._stuck_after = stuck_after
    self._step = 0
    self._mask = np.zeros(self._shape, np.int8)

  def _observe(self, is_over: bool) -> tuple[Any, dict[str, Any]]:
    mask = self.np_random.integers(0, 2, self._shape, np.int8)
    mask[..., 2] |= ~mask.any(axis=-1)
    self._mask = mask * (not is_over and self._step < self._stuck_after)
    x = self.np_random.normal(size=2).clip(-9, 9).astype(np.float32)
    if self._place == 'observation':
      return {'x': x, 'action_mask': self._mask}, {}
    # What is not 0 is legal.
    return x, {'action_mask': 7 * self._mask} if self._place == 'info' else {}

  def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
    super().reset(**kwargs)
    self._step = 0
    return self._observe(False)

  def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
    if isinstance(action, dict):
      action = action['choice']
    legal = np.take_along_axis(
      self._mask.reshape(-1, 4), np.reshape(action, (-1, 1)), -1
    )
    if not legal.all():
      raise AssertionError(f'{action} is illegal: {self._mask}')
    self._step += 1
    terminated = bool(self.np_random.random() < 0.125)
    truncated = self._step == _LIMIT
    observation, info = self._observe(terminated)
    return observation, 1.0, terminated, truncated, info


def make_on_device(
  several: bool = False, stuck_after: int = 1 << 30
) -> types.DeviceEnv:
  """Returns the same in JAX."""
  shape = (3, 4) if several else (4,)

  def observe(key: jax.Array, step: Any, is_over: Any) -> tuple[Any, Any]:
    mask = jax.random.bernoulli(key, 0.5, shape)
    mask = mask.at[..., 2].set(mask[..., 2] | ~mask.any(axis=-1))
    mask &= ~is_over & (step < stuck_after)
    x = jax.random.normal(key, (2,))
    return (mask, step), {'x': x, 'action_mask': mask}

  def reset(key: jax.Array) -> tuple[Any, Any]:
    return observe(key, 0, False)

  def step(key: jax.Array, state: Any, action: jax.Array) -> Any:
    mask, number = state
    legal = jnp.take_along_axis(
      mask.reshape(-1, 4), action.reshape(-1, 1), axis=-1
    )
    terminated = jax.random.bernoulli(jax.random.fold_in(key, 1), 0.125)
    state, observation = observe(key, number + 1, terminated)
    return batching.Transition(
      state,
      observation,
      jnp.where(legal.all(), 1.0, jnp.nan),
      terminated,
      number + 1 == _LIMIT,
    )

  action = types.discrete(4)
  if several:
    action = types.ActionSpec((3,), action.dtype, (0,) * 3, (3,) * 3)
  spec = types.StreamSpec(
    observation={
      'action_mask': types.ArraySpec(shape, np.dtype(bool)),
      'x': types.ArraySpec((2,), np.dtype(np.float32)),
    },
    action=action,
    action_repeat=1,
    name='Masked',
  )
  return batching.batch(spec, reset, step)


# The name of a factory.
make = Masked
