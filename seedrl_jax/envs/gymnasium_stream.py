"""Gymnasium environments, in this process or others, as an `EnvStream`."""

import collections
import threading
from collections.abc import Callable

import gymnasium
import ml_collections
import numpy as np

from seedrl_jax import types
from seedrl_jax.envs import base, gymnasium_envs, processes
from seedrl_jax.runtime import nest

Envs = processes.SyncEnvs | processes.ProcessEnvs


def make_stream(
  config: ml_collections.ConfigDict,
  seed: int,
  num_envs: int,
  batch_size: int,
  rendered: bool = False,
) -> 'GymnasiumStream':
  """Makes vectorised environments; see `factory.make_stream`."""
  spec, action_dtype = gymnasium_envs.describe(config)
  make_env = gymnasium_envs.load_factory(config, rendered)
  # Old configs lack the key. Rendering needs environments of this process.
  wanted = 0 if rendered else config.get('processes', 0)
  # Each batch of environments steps by itself.
  num_processes = -(-wanted // -(-num_envs // batch_size))

  def make_envs(seeds: np.ndarray) -> Envs:
    if not wanted:
      return processes.SyncEnvs(make_env, spec, seeds)
    return processes.ProcessEnvs(make_env, spec, seeds, num_processes)

  return GymnasiumStream(
    make_envs, spec, action_dtype, seed, num_envs, batch_size
  )


class _Group:
  """Environments that step together, once all have their actions."""

  def __init__(self, envs: Envs, env_id: np.ndarray):
    """Begins to reset the environments."""
    self.envs = envs
    self.env_id = env_id
    self.unanswered = len(env_id)
    # Which environments reset in the step under way.
    self._ended = np.ones(len(env_id), bool)
    envs.start(None)

  def start(self, action: np.ndarray) -> None:
    """Begins the next step."""
    self.unanswered = len(self.env_id)
    self.envs.start(action)

  def finish(self) -> tuple[processes.Steps, np.ndarray]:
    """Returns the steps and their `step_type`."""
    steps = self.envs.finish()
    step_type = np.full(len(self.env_id), types.StepType.MID, np.uint8)
    step_type[self._ended] = types.StepType.FIRST
    self._ended = steps.terminated | steps.truncated
    step_type[self._ended] = types.StepType.LAST
    return steps, step_type


class GymnasiumStream(base.LocalStream):
  """Groups of `batch_size` environments; the last may be smaller.

  The thread that calls `recv` steps those of this process.
  """

  def __init__(
    self,
    make_envs: Callable[[np.ndarray], Envs],
    spec: base.StreamSpec,
    action_dtype: np.dtype,
    seed: int,
    num_envs: int,
    batch_size: int,
  ):
    """Makes the environments and begins to reset them.

    Args:
      make_envs: makes a group's environments from their seeds, int `[n]`.
      seed: environment i is seeded with `seed + i`.
    """
    super().__init__(spec, action_dtype, num_envs, batch_size)
    env_id = np.arange(num_envs, dtype=np.int32)
    self._action = np.zeros((num_envs, *spec.action.shape), action_dtype)
    self._groups = [
      _Group(make_envs(seed + ids.astype(np.int64)), ids)
      for ids in np.split(env_id, range(batch_size, num_envs, batch_size))
    ]
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
        steps, step_type = group.finish()
      except base.EnvironmentFailed:
        # `close` may have killed it.
        self._check_open()
        raise
    leaves = nest.flatten(steps.observation)
    self._check_finite((x for x in leaves if x.dtype.kind == 'f'), group.env_id)
    reward = steps.reward.astype(np.float32)
    self._statistics.update(
      group.env_id,
      reward,
      step_type == types.StepType.LAST,
      steps.truncated & ~steps.terminated,
    )
    return types.EnvOutput(
      observation=steps.observation,
      reward=reward,
      discount=1.0 - steps.terminated.astype(np.float32),
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
    env = self._env(0)
    default = base.DEFAULT_STEPS_PER_SECOND
    return float(env.metadata.get('render_fps', default)) if env else default

  def render(self, env_id: int) -> np.ndarray | None:
    self._check_open()
    env = self._env(env_id)
    if env is None or env.render_mode != 'rgb_array':
      return None
    return np.asarray(env.render(), np.uint8)

  def _env(self, env_id: int) -> gymnasium.Env | None:
    """Returns an environment; None if it is in another process."""
    index, row = divmod(env_id, self.batch_size)
    envs = self._groups[index].envs
    return (
      envs.vector.envs[row] if isinstance(envs, processes.SyncEnvs) else None
    )

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
