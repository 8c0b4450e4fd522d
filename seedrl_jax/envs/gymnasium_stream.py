"""Gymnasium environments, in this process or others, as an `EnvStream`."""

import collections
import threading
from collections.abc import Callable
from typing import Any

import gymnasium
import ml_collections
import numpy as np
from gymnasium import spaces

from seedrl_jax import types
from seedrl_jax.envs import (
  base,
  local_stream,
  making,
  options,
  processes,
  registry,
  specs,
)


def make_spec(config: ml_collections.ConfigDict) -> base.StreamSpec:
  """Returns the spec of an environment, which is made and closed."""
  return _describe(config)[0]


def _describe(
  config: ml_collections.ConfigDict,
) -> tuple[base.StreamSpec, tuple[spaces.Space, spaces.Space]]:
  """Returns the spec, and the spaces of the observation and the action."""
  with registry.quiet_spaces():
    env = making.load_factory(config)()
  making.check_made(config, env)
  flag = making.env_flag(config)
  dropped = specs.check_dropped(config.drop_observations)
  try:
    kept = specs.drop_keys(env.observation_space, dropped)
    spec = base.StreamSpec(
      observation=_observation_spec(kept, flag),
      action=specs.action_spec(env.action_space, flag),
      action_repeat=1,
      name=making.name(config, env),
    )
    return spec, (_dict_space(kept), env.action_space)
  finally:
    env.close()


def _observation_spec(kept: types.Nest, flag: str) -> types.Nest:
  def array_spec(leaf: spaces.Space) -> types.ArraySpec:
    if leaf.shape is None or leaf.dtype is None:
      raise ValueError(
        f'{flag}: observations must be arrays or dicts of arrays, not '
        f'{type(leaf).__name__}.'
      )
    return types.ArraySpec(tuple(leaf.shape), specs.agent_dtype(leaf.dtype))

  return specs.map_nest(array_spec, kept)


def _dict_space(nest: types.Nest) -> spaces.Space:
  if not isinstance(nest, dict):
    return nest
  return spaces.Dict({k: _dict_space(v) for k, v in nest.items()})


def make_stream(
  config: ml_collections.ConfigDict,
  seed: int,
  num_envs: int,
  batch_size: int,
  rendered: bool = False,
) -> 'GymnasiumStream':
  """Makes vectorised environments; see `factory.make_stream`."""
  options.check_pool_size(num_envs, batch_size)
  spec, (observation_space, action_space) = _describe(config)
  make_env = making.load_factory(config, rendered)
  # Old configs lack the key. Rendering needs environments of this process.
  wanted = 0 if rendered else config.get('processes', 0)
  # Each batch of environments steps by itself.
  num_processes = -(-wanted // -(-num_envs // batch_size))

  def make_envs(seeds: np.ndarray) -> _InProcess | processes.ProcessEnvs:
    if not wanted:
      return _InProcess(make_env, seeds)
    return processes.ProcessEnvs(
      make_env,
      (observation_space, action_space),
      specs.check_dropped(config.drop_observations),
      seeds,
      num_processes,
      spec.name,
    )

  return GymnasiumStream(
    make_envs, spec, np.dtype(action_space.dtype), seed, num_envs, batch_size
  )


class _InProcess:
  """Environments that step when `finish` is called."""

  def __init__(self, make_env: making.EnvFactory, seeds: np.ndarray):
    self.envs = processes.make_sync(make_env, len(seeds))
    self._seeds = seeds.tolist()
    self._action: np.ndarray | None = None

  def start(self, action: np.ndarray | None) -> None:
    self._action = action

  def finish(self, is_reset: bool) -> processes.Steps:
    if is_reset:
      observation, _ = self.envs.reset(seed=self._seeds)
      none = np.zeros(len(self._seeds), bool)
      return observation, np.zeros(len(self._seeds)), none, none
    observation, reward, terminated, truncated, _ = self.envs.step(self._action)
    return observation, reward, terminated, truncated

  def kill(self) -> None:
    """Does nothing: a step in this process cannot be interrupted."""

  def close(self) -> None:
    self.envs.close()


class _Group:
  """Environments that step together, once all have their actions."""

  def __init__(
    self, envs: _InProcess | processes.ProcessEnvs, env_id: np.ndarray
  ):
    self.envs = envs
    self.env_id = env_id
    self.unanswered = 0
    # Which environments reset in the next step; None before the first step.
    self._ended: np.ndarray | None = None

  def start(self, action: np.ndarray) -> None:
    """Begins the next step; the first one, which takes no action, resets."""
    self.unanswered = len(self.env_id)
    self.envs.start(None if self._ended is None else action)

  def finish(self) -> tuple[Any, ...]:
    """Returns (observation, reward, step_type, terminated, truncated)."""
    size = len(self.env_id)
    first = np.ones(size, bool) if self._ended is None else self._ended
    observation, reward, terminated, truncated = self.envs.finish(
      is_reset=self._ended is None
    )
    self._ended = terminated | truncated
    step_type = np.full(size, types.StepType.MID, np.uint8)
    step_type[first] = types.StepType.FIRST
    step_type[self._ended] = types.StepType.LAST
    return observation, reward, step_type, terminated, truncated

  def env(self, env_id: int) -> gymnasium.Env | None:
    """Returns an environment by the stream's id; None if of other processes."""
    if not isinstance(self.envs, _InProcess):
      return None
    return self.envs.envs.envs[env_id - self.env_id[0]]


class GymnasiumStream(local_stream.LocalStream):
  """Groups of `batch_size` environments; the last may be smaller.

  The thread that calls `recv` steps those of this process.
  """

  def __init__(
    self,
    make_envs: Callable[[np.ndarray], _InProcess | processes.ProcessEnvs],
    spec: base.StreamSpec,
    action_dtype: np.dtype,
    seed: int,
    num_envs: int,
    batch_size: int,
  ):
    """Makes the environments and begins to reset them.

    Args:
      make_envs: makes a group's environments from their seeds, int `[n]`.
      spec: keys that its observation lacks are dropped.
      seed: environment i is seeded with `seed + i`.
    """
    super().__init__(spec, action_dtype, num_envs, batch_size)
    env_id = np.arange(num_envs, dtype=np.int32)
    seeds = seed + env_id.astype(np.int64)
    self._action = np.zeros((num_envs, *spec.action.shape), action_dtype)
    self._groups: list[_Group] = []
    for start in range(0, num_envs, batch_size):
      part = slice(start, start + batch_size)
      group = _Group(make_envs(seeds[part]), env_id[part])
      group.start(self._action[part])
      self._groups.append(group)
    self._ready = collections.deque(self._groups)
    self._stepping = threading.Lock()

  @property
  def min_batch_size(self) -> int:
    return len(self._groups[-1].env_id)

  def recv(self) -> types.EnvOutput:
    with self._changed:
      while not self._ready and not self._closed:
        self._changed.wait()
      self._check_open()
      group = self._ready.popleft()
    with self._stepping:
      self._check_open()
      try:
        observation, reward, step_type, terminated, truncated = group.finish()
      except base.EnvironmentFailed:
        # `close` may have killed it.
        self._check_open()
        raise
    observation = _convert(observation, self.spec.observation)
    floats = (x for x in specs.leaves(observation) if x.dtype.kind == 'f')
    self._check_finite(floats, group.env_id)
    reward = np.asarray(reward, np.float32)
    self._statistics.update(
      group.env_id,
      reward,
      step_type == types.StepType.LAST,
      truncated & ~terminated,
    )
    return types.EnvOutput(
      observation=observation,
      reward=reward,
      discount=1.0 - terminated.astype(np.float32),
      step_type=step_type,
      env_id=group.env_id.copy(),
    )

  def send(self, action: np.ndarray, env_id: np.ndarray) -> None:
    action = self._env_action(action, env_id)
    counts = np.bincount(env_id // self.batch_size)
    with self._changed:
      self._check_open()
      self._action[env_id] = action
      for index in np.flatnonzero(counts):
        group = self._groups[index]
        group.unanswered -= counts[index]
        if group.unanswered == 0:
          group.start(self._action[group.env_id])
          self._ready.append(group)
      self._changed.notify()

  @property
  def steps_per_second(self) -> float:
    env, default = self._groups[0].env(0), super().steps_per_second
    return float(env.metadata.get('render_fps', default)) if env else default

  def render(self, env_id: int) -> np.ndarray | None:
    self._check_open()
    env = self._groups[env_id // self.batch_size].env(env_id)
    if env is None or env.render_mode != 'rgb_array':
      return None
    return np.asarray(env.render(), np.uint8)

  def close(self) -> None:
    """See `EnvStream.close`; kills processes that take too long to step."""
    with self._changed:
      if self._closed:
        return
      self._closed = True
      self._changed.notify_all()
    if not self._stepping.acquire(timeout=processes.END_SECONDS):
      for group in self._groups:
        group.envs.kill()
      self._stepping.acquire()
    for group in self._groups:
      group.envs.close()
    self._stepping.release()


def _convert(observation: Any, spec: types.Nest) -> types.Nest:
  if isinstance(spec, dict):
    return {key: _convert(observation[key], spec[key]) for key in spec}
  return np.asarray(observation, spec.dtype)
