"""Gymnasium environments, in this process or others, as an `EnvStream`."""

import collections
import contextlib
import dataclasses
import os
import threading

import gymnasium
import ml_collections
import numpy as np

from seedrl_jax import types
from seedrl_jax.envs import base, gymnasium_envs, processes, registry, specs
from seedrl_jax.runtime import nest

Envs = processes.SyncEnvs | processes.ProcessEnvs


@dataclasses.dataclass
class _Group:
  """Environments that step together, once all have their actions."""

  envs: Envs
  env_id: np.ndarray
  unanswered: int = 0

  def start(self, action: np.ndarray) -> None:
    """Begins the next step."""
    self.unanswered = len(self.env_id)
    self.envs.start(action)


class GymnasiumStream(base.LocalStream):
  """Groups of `batch_size` environments; the last may be smaller.

  The thread that calls `recv` steps those of this process.
  """

  def __init__(
    self,
    config: ml_collections.ConfigDict,
    seed: int,
    num_envs: int,
    batch_size: int,
    rendered: bool = False,
  ):
    """Makes the environments and resets them; see `factory.make_stream`."""
    if rendered:
      # Otherwise MuJoCo wants a screen.
      os.environ.setdefault('MUJOCO_GL', 'egl')
    spec, action_dtype = gymnasium_envs.describe(config)
    joined = specs.joined_spec(spec.observation)
    self._joins = joined is not spec.observation
    super().__init__(
      spec._replace(observation=joined), action_dtype, num_envs, batch_size
    )
    make_env = gymnasium_envs.load_factory(config, rendered)
    # Each group has its own. Rendering needs environments of this process.
    wanted = 0 if rendered else config.processes
    num_processes = -(-wanted // -(-num_envs // batch_size))

    def make_envs(env_id: np.ndarray) -> Envs:
      if not wanted:
        return processes.SyncEnvs(make_env, spec, seed, env_id)
      return processes.ProcessEnvs(make_env, spec, seed, env_id, num_processes)

    env_id = np.arange(num_envs, dtype=np.int32)
    self._action = np.zeros((num_envs, *spec.action.shape), action_dtype)
    self._groups = [
      _Group(make_envs(ids), ids)
      for ids in np.split(env_id, range(batch_size, num_envs, batch_size))
    ]
    for group in self._groups:
      group.start(self._action[group.env_id])
    self._ready = collections.deque(self._groups)
    self._stepping = threading.Lock()
    if env := self._env(0):
      fps = env.metadata.get('render_fps', self.steps_per_second)
      self.steps_per_second = float(fps)

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
        output = group.envs.finish()
      except base.EnvironmentFailed:
        # `close` may have killed it.
        self._check_open()
        raise
    leaves = nest.flatten(output.observation)
    self._check_finite((x for x in leaves if x.dtype.kind == 'f'), group.env_id)
    if self._joins:
      output = output._replace(observation=specs.join(leaves))
    last = output.step_type == types.StepType.LAST
    truncated = output.discount > 0
    self._statistics.update(group.env_id, output.reward, last, truncated)
    return output

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

  def render(self, env_id: int) -> np.ndarray | None:
    self._check_open()
    env = self._env(env_id)
    if env is None or env.render_mode != 'rgb_array':
      return None
    try:
      return np.asarray(env.render(), np.uint8)
    except Exception as e:
      if type(env.unwrapped).__module__.partition('.')[0] != 'gymnasium':
        raise
      # Gymnasium's own fail in many ways if a package or library is missing.
      raise registry.cannot_draw(self.spec.name, e) from e

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
    with contextlib.ExitStack() as closing:
      closing.callback(self._stepping.release)
      for group in self._groups:
        closing.callback(group.envs.close)
