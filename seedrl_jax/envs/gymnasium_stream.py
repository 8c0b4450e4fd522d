"""Gymnasium environments, in this process or others, as an `EnvStream`."""

import contextlib
import functools
import logging
import os
import queue

import numpy as np

from seedrl_jax import types
from seedrl_jax.envs import (
  base,
  env_thread,
  gymnasium_envs,
  processes,
  registry,
  specs,
)
from seedrl_jax.runtime import nest

Envs = processes.SyncEnvs | processes.ProcessEnvs

_log = logging.getLogger(__name__)


class GymnasiumStream(base.LocalStream):
  """Groups of `batch_size` environments; the last may be smaller.

  A group steps once all its environments have their actions. A thread of the
  stream makes, steps, draws and closes those of this process.
  """

  def __init__(
    self,
    config: types.Config,
    seed: int,
    num_envs: int,
    batch_size: int,
    rendered: bool = False,
  ):
    """Makes the environments and resets them; see `factory.make_stream`."""
    if rendered:
      # Otherwise MuJoCo wants a screen.
      os.environ.setdefault('MUJOCO_GL', 'egl')
    spec, action_dtype, bounds = gymnasium_envs.describe(config)
    super().__init__(
      specs.joined_spec(spec), action_dtype, num_envs, batch_size
    )
    # Numbers and bounds of the observation's arrays that have any.
    self._observation_bounds = [
      (i, x) for i, x in enumerate(bounds) if x is not None
    ]
    self._num_batches = 0
    self._is_released = False
    make_env = gymnasium_envs.load_factory(config, rendered)
    # Rendering needs environments of this process.
    num_processes = 0 if rendered else config.processes
    per_group = -(-num_processes // -(-num_envs // batch_size))

    def make_groups() -> None:
      env_id = np.arange(num_envs, dtype=np.int32)
      for ids in np.split(env_id, range(batch_size, num_envs, batch_size)):
        group: Envs
        if num_processes:
          group = processes.ProcessEnvs(make_env, spec, seed, ids, per_group)
        else:
          group = processes.SyncEnvs(make_env, spec, seed, ids)
          fps = group.envs[0].metadata.get('render_fps', self.steps_per_second)
          self.steps_per_second = float(fps)
        self._thread.closing.callback(group.close)
        self._groups.append(group)

    self._action = np.zeros((num_envs, *spec.action.shape), action_dtype)
    self._groups: list[Envs] = []
    # Steps that wait for `recv`, why there are no more, or None if closed.
    self._outputs = queue.SimpleQueue[types.EnvOutput | BaseException | None]()
    self._thread = env_thread.EnvThread(f'envs-{spec.name}')
    try:
      self._thread.call(make_groups)
    except BaseException:
      self._thread.interrupt()
      raise
    # Actions that each group still needs.
    self._missing = [len(group.env_id) for group in self._groups]
    self.min_batch_size = self._missing[-1]
    for group in self._groups:
      self._start(group)

  def recv(self) -> types.EnvOutput:
    output = self._outputs.get()
    if not isinstance(output, types.EnvOutput):
      # The next call needs it, too.
      self._outputs.put(output)
    self._check_open()
    if isinstance(output, BaseException):
      raise output
    assert output is not None
    leaves = nest.flatten(output.observation)
    self._check_finite(leaves, output.env_id)
    self._check_bounds(leaves, output.env_id)
    if self.spec.parts is not None:
      output = output._replace(observation=nest.join(leaves))
    last = output.step_type == types.StepType.LAST
    self._check_choices(output.observation, last, output.env_id)
    truncated = output.discount > 0
    self._statistics.update(output.env_id, output.reward, last, truncated)
    return output

  def send(self, action: np.ndarray, env_id: np.ndarray) -> None:
    action = self._env_action(action, env_id)
    counts = np.bincount(env_id // self.batch_size)
    # The thread closes the environments' pipes only after `interrupt`.
    with self._changed:
      self._check_open()
      self._action[env_id] = action
      for index in np.flatnonzero(counts):
        group = self._groups[index]
        self._missing[index] -= counts[index]
        if not self._missing[index]:
          self._missing[index] = len(group.env_id)
          self._start(group)

  def render(self, env_id: int) -> np.ndarray | None:
    self._check_open()
    return self._thread.call(lambda: self._draw(env_id))

  def interrupt(self) -> None:
    super().interrupt()
    for group in self._groups:
      group.stop()
    self._outputs.put(None)
    self._thread.interrupt()

  def close(self) -> None:
    """See `EnvStream.close`; kills processes that hang.

    Raises:
      EnvironmentFailed: if an environment hangs.
      Exception: what an environment's `close` raised.
    """
    self.interrupt()
    if self._is_released:
      return
    self._is_released = True
    try:
      env_thread.wait_while_busy(
        self._thread.join, self._running, self.spec.name
      )
    except base.EnvironmentFailed:
      groups = [x for x in self._groups if isinstance(x, processes.ProcessEnvs)]
      for group in groups:
        group.kill()
      if groups:
        # The thread waited for them, and may say the same.
        with contextlib.suppress(base.EnvironmentFailed):
          self._thread.join(processes.END_SECONDS)
      raise

  def _running(self) -> list[int]:
    return [i for group in self._groups for i in group.running()]

  def _start(self, group: Envs) -> None:
    group.start(self._action[group.env_id])
    self._thread.submit(functools.partial(self._finish, group))

  def _finish(self, group: Envs) -> None:
    try:
      self._outputs.put(group.finish())
    except BaseException as e:
      self._outputs.put(e)

  def _draw(self, env_id: int) -> np.ndarray | None:
    index, row = divmod(env_id, self.batch_size)
    envs = self._groups[index]
    if not isinstance(envs, processes.SyncEnvs):
      return None
    env = envs.envs[row]
    if env.render_mode != 'rgb_array':
      return None
    try:
      return np.asarray(env.render(), np.uint8)
    except Exception as e:
      if type(env.unwrapped).__module__.partition('.')[0] != 'gymnasium':
        raise
      # Gymnasium's own fail in many ways if a package or library is missing.
      raise registry.cannot_draw(self.spec.name, e) from e

  def _check_bounds(self, leaves: list[np.ndarray], env_id: np.ndarray) -> None:
    """Warns once of an observation outside its Box; a Discrete one is an error.

    Compares one environment per batch, round-robin: large arrays take time.
    """
    turn = self._num_batches // len(self._groups) % len(env_id)
    self._num_batches += 1
    for number, bounds in self._observation_bounds:
      start, stop = (0, None) if bounds.is_strict else (turn, turn + 1)
      violation = bounds.violation(leaves[number][start:stop])
      if violation is None:
        continue
      row, text = violation
      failure = self._failure(env_id[start + row], text)
      if bounds.is_strict:
        raise failure
      _log.warning('%s The run goes on.', failure)
      self._observation_bounds = [
        item for item in self._observation_bounds if item[1].is_strict
      ]
      return
