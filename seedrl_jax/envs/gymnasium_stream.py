"""Gymnasium environments of the user's own, as an `EnvStream`.

Called by `factory` where the config names a `module:function` that returns a
`gymnasium.Env`. Gymnasium vectorises them in this process, one after another:
a hook for toys and for what EnvPool does not have, not for speed.
"""

import collections
import inspect
import threading
from collections.abc import Callable, Collection
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces, vector

from seedrl_jax import types
from seedrl_jax.envs import (
  base,
  functions,
  local_stream,
  options,
  registry,
  specs,
)

EnvFactory = Callable[[], gymnasium.Env]


def load_factory(config: Any, rendered: bool = False) -> EnvFactory:
  """Returns the function that makes one environment.

  Args:
    config: the `env` section of a run's config, whose `factory` is set.
    rendered: hand the factory `render_mode='rgb_array'`, if it takes that.

  Raises:
    ValueError: where there is no such function, or where options are set
      that only EnvPool understands.
  """
  flag = f'--config.env.factory={config.factory}'
  functions.check_reference(flag, config.factory)
  for name in [*options.set_options(config), *config.options]:
    raise ValueError(
      f'--config.env.{name}: is an option of EnvPool, which {flag} replaces; '
      'give it in --config.env.factory_kwargs.'
    )
  function = functions.load_function(flag, config.factory)
  kwargs = dict(config.factory_kwargs.items())
  if rendered and _takes_render_mode(function):
    kwargs['render_mode'] = 'rgb_array'
  return lambda: function(**kwargs)


def _takes_render_mode(function: EnvFactory) -> bool:
  parameters = inspect.signature(function).parameters.values()
  return any(
    p.name == 'render_mode' or p.kind == p.VAR_KEYWORD for p in parameters
  )


def make_spec(config: Any) -> base.StreamSpec:
  """Describes the environment by making one and closing it again.

  Args:
    config: the `env` section of a run's config, whose `factory` is set.

  Raises:
    ValueError: where the factory or its spaces cannot be used.
  """
  with registry.quiet_spaces():
    env = load_factory(config)()
  if not isinstance(env, gymnasium.Env):
    raise ValueError(
      f'--config.env.factory={config.factory}: must return a gymnasium.Env, '
      f'not {type(env).__name__}.'
    )
  name = config.id or config.factory
  dropped = specs.check_dropped(config.drop_observations)
  try:
    return base.StreamSpec(
      observation=_observation_spec(env.observation_space, name, dropped),
      num_actions=_num_actions(env.action_space, name),
      action_repeat=1,
      name=name,
    )
  finally:
    env.close()


def _observation_spec(
  space: spaces.Space, name: str, dropped: Collection[str]
) -> types.Nest:
  def array_spec(leaf: spaces.Space) -> types.ArraySpec:
    if leaf.shape is None or leaf.dtype is None:
      raise ValueError(
        f'--config.env.id={name}: observations must be arrays or dicts of '
        f'arrays, not {type(leaf).__name__}.'
      )
    return types.ArraySpec(tuple(leaf.shape), specs.agent_dtype(leaf.dtype))

  # Dropped first: what is dropped may be of any kind, as text is.
  return specs.map_nest(array_spec, specs.drop_keys(space, dropped))


def _num_actions(space: spaces.Space, name: str) -> int:
  if isinstance(space, spaces.Box):
    specs.refuse_continuous(name)
  if not isinstance(space, spaces.Discrete) or space.start != 0:
    specs.refuse_joint(name)
  return int(space.n)


def make_stream(
  config: Any,
  seed: int,
  num_envs: int,
  batch_size: int,
  rendered: bool = False,
) -> 'GymnasiumStream':
  """Makes vectorised environments; see `factory.make_stream`."""
  options.check_pool_size(num_envs, batch_size)
  spec = make_spec(config)
  make_env = load_factory(config, rendered)
  return GymnasiumStream(make_env, spec, seed, num_envs, batch_size)


class _Group:
  """Environments that step together, and whether they may."""

  def __init__(self, make_env: EnvFactory, env_id: np.ndarray, seed: int):
    # NEXT_STEP resets on the step after the last one, as EnvPool does.
    self._envs = vector.SyncVectorEnv(
      [make_env] * len(env_id),
      autoreset_mode=vector.AutoresetMode.NEXT_STEP,
    )
    self.env_id = env_id
    self.unanswered = 0
    # None before the first step. Then, where the next step is a reset.
    self._ended: np.ndarray | None = None
    self._seeds = (seed + env_id.astype(np.int64)).tolist()

  def step(self, action: np.ndarray) -> tuple[Any, ...]:
    """Returns (observation, reward, step_type, terminated, truncated)."""
    size = len(self.env_id)
    self.unanswered = size
    if self._ended is None:
      observation, _ = self._envs.reset(seed=self._seeds)
      reward = np.zeros(size)
      first = np.ones(size, bool)
      terminated = truncated = np.zeros(size, bool)
    else:
      first = self._ended
      observation, reward, terminated, truncated, _ = self._envs.step(action)
    self._ended = terminated | truncated
    step_type = np.full(size, types.StepType.MID, np.uint8)
    step_type[first] = types.StepType.FIRST
    step_type[self._ended] = types.StepType.LAST
    return observation, reward, step_type, terminated, truncated

  def env(self, env_id: int) -> gymnasium.Env:
    """Returns one of the environments, by the stream's id."""
    return self._envs.envs[env_id - self.env_id[0]]

  def close(self) -> None:
    """Closes the environments."""
    self._envs.close()


class GymnasiumStream(local_stream.LocalStream):
  """Groups of `batch_size` environments, stepped by the receiving thread."""

  def __init__(
    self,
    make_env: EnvFactory,
    spec: base.StreamSpec,
    seed: int,
    num_envs: int,
    batch_size: int,
  ):
    """Makes the environments; the last group may be smaller than the others.

    Args:
      make_env: makes one environment.
      spec: as `make_spec` says; keys that its observation lacks are dropped.
      seed: environment i is seeded with `seed + i`.
      num_envs: environments in all.
      batch_size: environments per `recv`.
    """
    super().__init__(spec, num_envs, batch_size)
    env_id = np.arange(num_envs, dtype=np.int32)
    with registry.quiet_spaces():
      self._groups = [
        _Group(make_env, env_id[start : start + batch_size], seed)
        for start in range(0, num_envs, batch_size)
      ]
    self._action = np.zeros(num_envs, np.int32)
    self._ready = collections.deque(self._groups)
    self._stepping = threading.Lock()

  @property
  def min_batch_size(self) -> int:
    """See `EnvStream.min_batch_size`."""
    return len(self._groups[-1].env_id)

  def recv(self) -> types.EnvOutput:
    """See `EnvStream.recv`."""
    with self._changed:
      while not self._ready and not self._closed:
        self._changed.wait()
      self._check_open()
      group = self._ready.popleft()
    with self._stepping:
      self._check_open()
      observation, reward, step_type, terminated, truncated = group.step(
        self._action[group.env_id]
      )
    reward = np.asarray(reward, np.float32)
    self._statistics.update(
      group.env_id,
      reward,
      step_type == types.StepType.LAST,
      truncated & ~terminated,
    )
    return types.EnvOutput(
      observation=_convert(observation, self.spec.observation),
      reward=reward,
      discount=1.0 - terminated.astype(np.float32),
      step_type=step_type,
      env_id=group.env_id.copy(),
    )

  def send(self, action: np.ndarray, env_id: np.ndarray) -> None:
    """See `EnvStream.send`."""
    self._check_action(action, env_id)
    counts = np.bincount(env_id // self.batch_size)
    with self._changed:
      self._check_open()
      self._action[env_id] = action
      for index in np.flatnonzero(counts):
        group = self._groups[index]
        group.unanswered -= counts[index]
        if group.unanswered == 0:
          self._ready.append(group)
      self._changed.notify()

  @property
  def steps_per_second(self) -> float:
    """See `LocalStream.steps_per_second`."""
    metadata = self._groups[0].env(0).metadata
    return float(metadata.get('render_fps', super().steps_per_second))

  def render(self, env_id: int) -> np.ndarray | None:
    """See `LocalStream.render`."""
    self._check_open()
    env = self._groups[env_id // self.batch_size].env(env_id)
    if env.render_mode != 'rgb_array':
      return None
    return np.asarray(env.render(), np.uint8)

  def close(self) -> None:
    """See `EnvStream.close`; waits for a group that is stepping."""
    with self._changed:
      if self._closed:
        return
      self._closed = True
      self._changed.notify_all()
    with self._stepping:
      for group in self._groups:
        group.close()


def _convert(observation: Any, spec: types.Nest) -> types.Nest:
  if isinstance(spec, dict):
    return {key: _convert(observation[key], spec[key]) for key in spec}
  return np.asarray(observation, spec.dtype)
