"""Gymnasium environments with scripted steps."""

import asyncio
import multiprocessing
import os
import sys
import threading
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Scripted(gymnasium.Env):
  """Episodes of 3, 5 and 4 steps: terminated, truncated, both; repeating.

  The reward of step t is t. Observations are float64 (episode, step, last
  action); episodes count from 0, and no action is -1.
  """

  LENGTHS = (3, 5, 4)

  def __init__(self) -> None:
    self.observation_space = spaces.Box(-1, 1e16, (3,), np.float64)
    self.action_space = spaces.Discrete(4)
    self._episode = -1
    self._step = 0

  def _observe(self, action: int) -> np.ndarray:
    return np.array([self._episode, self._step, int(action)], np.float64)

  def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
    super().reset(**kwargs)
    self._episode += 1
    self._step = 0
    return self._observe(-1), {}

  def step(
    self, action: Any
  ) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
    self._step += 1
    kind = self._episode % 3
    over = self._step == self.LENGTHS[kind]
    terminated, truncated = over and kind != 1, over and kind != 0
    observation = self._observe(action)
    return observation, float(self._step), terminated, truncated, {}


class Seeded(Scripted):
  """Shows a number drawn from its seed, in a nested dict, and a text."""

  def __init__(self) -> None:
    super().__init__()
    self.observation_space = spaces.Dict({
      'noise': spaces.Box(0, 1, (), np.float32),
      'inner': spaces.Dict({
        'z': spaces.Discrete(9),
        'a': spaces.Box(0, 255, (2, 2), np.uint8),
      }),
      'mission': spaces.Text(20),
    })

  def _observe(self, action: int) -> Any:
    if self._step == 0:
      self._noise = np.float32(self.np_random.random())
    return {
      'noise': np.asarray(self._noise),
      'inner': {
        'z': np.int64(self._step),
        'a': np.full((2, 2), self._step, np.uint8),
      },
      'mission': 'get to the goal',
    }


class Parts(Scripted):
  """Shows nothing but floats, in a nested dict, and a text."""

  def __init__(self) -> None:
    super().__init__()
    self.observation_space = spaces.Dict({
      'step': spaces.Box(0, 9, (), np.float32),
      'mission': spaces.Text(20),
      'arm': spaces.Dict({'b': spaces.Box(0, 9, (2,), np.float64)}),
    })

  def _observe(self, action: int) -> Any:
    arm = {'b': np.array([self._episode, action], np.float64)}
    return {'step': np.float32(self._step), 'arm': arm, 'mission': 'go'}


class Stamp(Scripted):
  """Shows 3,000,000,000 as an int64, whatever its bound says."""

  def __init__(self, high: int) -> None:
    super().__init__()
    self.observation_space = spaces.Box(0, high, (2,), np.int64)

  def _observe(self, action: int) -> np.ndarray:
    return np.array([3_000_000_000, 1])


ACTION_SPACES = {
  'discrete': spaces.Discrete(4),
  'joint': spaces.MultiDiscrete([2, 3]),
  'binary': spaces.MultiBinary(3),
  # Environments often use float64; agents do not.
  'box': spaces.Box(-1, 1, (2, 2), np.float64),
  'hybrid': spaces.Dict({
    'choice': spaces.Discrete(4),
    'rest': spaces.Tuple([
      spaces.MultiDiscrete([2, 3]),
      spaces.Box(-1, 1, (2, 2), np.float64),
    ]),
  }),
}


def _numbers(action: Any) -> np.ndarray:
  """Returns an action of several parts as a vector."""
  if isinstance(action, dict):
    action = tuple(action.values())
  if isinstance(action, tuple):
    return np.concatenate([np.ravel(_numbers(x)) for x in action])
  return np.asarray(action, np.float32)


class Echo(Scripted):
  """Shows the last action; rejects those outside its space."""

  def __init__(self, kind: str, render_mode: str | None = None) -> None:
    super().__init__()
    self.render_mode = render_mode
    self.action_space = ACTION_SPACES[kind]
    shape = _numbers(self.action_space.sample()).shape
    self.observation_space = spaces.Box(-9, 9, shape, np.float32)

  def _observe(self, action: Any) -> np.ndarray:
    shape = self.observation_space.shape
    if self._step == 0:
      return np.zeros(shape, np.float32)
    assert self.action_space.contains(action), action
    return _numbers(action).reshape(shape).astype(np.float32)

  def render(self) -> np.ndarray:
    return np.full((12, 16, 3), 40 * self._step, np.uint8)


def not_an_environment() -> str:
  return 'scripted'


class Match(gymnasium.Env):
  """Eight steps, each with a reward of 1 for repeating two numbers."""

  def __init__(self) -> None:
    self.observation_space = spaces.Box(0, 2, (2,), np.float32)
    self.action_space = spaces.MultiDiscrete([3, 3])
    self._step, self._goal = 0, np.zeros(2, int)

  def _observe(self) -> np.ndarray:
    self._goal = self.np_random.integers(0, 3, 2)
    return self._goal.astype(np.float32)

  def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
    super().reset(**kwargs)
    self._step = 0
    return self._observe(), {}

  def step(
    self, action: Any
  ) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
    self._step += 1
    reward = float((action == self._goal).all())
    return self._observe(), reward, False, self._step == 8, {}


class Telling(Scripted):
  """Shows whether its process has JAX, and whether it may use a device."""

  def __init__(self) -> None:
    super().__init__()
    self.observation_space = spaces.Box(0, 1, (2,), np.float32)

  def _observe(self, action: int) -> np.ndarray:
    del action
    platforms = os.environ.get('JAX_PLATFORMS')
    return np.array(['jax' in sys.modules, platforms == 'cpu'], np.float32)


class Stuck(Scripted):
  """Never returns from a method if its seed is 1 + `at`."""

  def __init__(self, at: int, method: str) -> None:
    super().__init__()
    self._at, self._hangs = at, False
    setattr(self, method, self._hang)

  def reset(self, *, seed: int | None = None, **kwargs: Any) -> Any:
    self._hangs = seed == 1 + self._at
    return super().reset(seed=seed, **kwargs)

  def _hang(self, *args: Any) -> Any:
    if self._hangs:
      threading.Event().wait()
    return super().step(*args) if args else None


class UnpicklableError(Exception):
  """Cannot be made from its text alone."""

  def __init__(self, how: str, more: Any):
    super().__init__(f'Unpicklable: {how}')
    self.more = lambda: more


class Failing(Scripted):
  """Fails at its third step."""

  def step(self, action: Any) -> Any:
    if self._step == 2:
      raise UnpicklableError('step', None)
    return super().step(action)


def failing(how: str) -> gymnasium.Env:
  # The first environment is made only for its spec.
  if how == 'make' and multiprocessing.parent_process() is not None:
    raise UnpicklableError('make', None)
  return Failing() if how == 'step' else Scripted()


class Spoiled(Scripted):
  """Its third observation has a non-finite value next to a huge one."""

  def __init__(self, value: float) -> None:
    super().__init__()
    self._value = value

  def _observe(self, action: int) -> np.ndarray:
    last = self._value if self._step == 2 else action
    return np.array([3e38, self._step, last], np.float64)


ODD_VALUES = {
  'array': (1, np.array([2.0])),
  'nan': (1, np.nan),
  'shape': (0, np.zeros(2)),
}


class Odd(Scripted):
  """Returns something unusual from its second step, as `kind` says."""

  def __init__(self, kind: str) -> None:
    super().__init__()
    self._kind = kind

  def step(self, action: Any) -> Any:
    values = list(super().step(action))
    if self._step == 2 and self._kind in ODD_VALUES:
      place, value = ODD_VALUES[self._kind]
      values[place] = value
    return tuple(values[:4] if self._kind == 'old' else values)


class Bound(Scripted):
  """Works only in the thread that made it, and uses its event loop."""

  def __init__(self, render_mode: str | None = None) -> None:
    super().__init__()
    self.render_mode = render_mode
    self._thread = threading.get_ident()

  def _use(self) -> None:
    assert threading.get_ident() == self._thread
    asyncio.get_event_loop().run_until_complete(asyncio.sleep(0))

  def _observe(self, action: int) -> np.ndarray:
    self._use()
    return super()._observe(action)

  def render(self) -> np.ndarray:
    self._use()
    return np.zeros((2, 2, 3), np.uint8)

  def close(self) -> None:
    self._use()


def asynchronous() -> gymnasium.Env:
  asyncio.run(asyncio.sleep(0))
  return Scripted()


class Beyond(Scripted):
  """Its Discrete observation, 0 to 2, counts the steps."""

  def __init__(self) -> None:
    super().__init__()
    self.observation_space = spaces.Dict({'step': spaces.Discrete(3)})

  def _observe(self, action: int) -> Any:
    return {'step': self._step}


# Names of factories.
scripted, seeded, echo, telling = Scripted, Seeded, Echo, Telling
stuck, spoiled, parts, match = Stuck, Spoiled, Parts, Match
odd, bound, beyond = Odd, Bound, Beyond
