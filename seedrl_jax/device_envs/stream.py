"""Environments in JAX as an `EnvStream`, one call per step.

For all that is not training on this machine: evaluation, video, recording,
remote actors. Training scans whole unrolls (`inference.device_worker`).
"""

import jax
import numpy as np

from seedrl_jax import types
from seedrl_jax.envs import action_masks, base


class DeviceEnvStream(base.LocalStream):
  """A `types.DeviceEnv`, all of whose environments step together."""

  def __init__(
    self,
    env: types.DeviceEnv,
    seed: int,
    num_envs: int,
    tasks: np.ndarray | None = None,
  ):
    """`tasks` are those that `env` has; None in a run of one."""
    action = env.spec.action
    super().__init__(env.spec, action.dtype, num_envs, num_envs, tasks)
    suite = env.spec.name.partition(':')[0]
    self.needs_choice = suite != action_masks.LENIENT
    self._observation: types.Nest = None  # the last one
    self._step = jax.jit(env.step, donate_argnums=0)
    init = jax.jit(env.init, static_argnums=1)
    self._state, output = init(jax.random.PRNGKey(seed), num_envs)
    self._output: types.EnvOutput | None = output

  def recv(self) -> types.EnvOutput:
    with self._changed:
      self._changed.wait_for(lambda: self._closed or self._output is not None)
      self._check_open()
      output, self._output = jax.device_get(self._output), None
    step_type = output.step_type
    first = step_type == types.StepType.FIRST
    if self._observation is not None:
      # Only now: an environment that waits for its reset shows an old mask.
      self._check_choices(self._observation, first, output.env_id)
    self._observation = output.observation
    self._check_rewards(output.reward, output.env_id)
    last = step_type == types.StepType.LAST
    self._statistics.update(
      output.env_id, output.reward, last, last & (output.discount > 0)
    )
    self._statistics.restart(first)
    return output

  def send(self, action: np.ndarray, env_id: np.ndarray) -> None:
    action = self._env_action(action, env_id)
    ordered = np.empty_like(action)
    ordered[env_id] = action
    with self._changed:
      self._check_open()
      self._state, self._output = self._step(self._state, ordered)
      self._changed.notify_all()
