"""An environment that costs nothing, for the benchmark of everything else."""

import threading

import numpy as np

from seedrl_jax import types
from seedrl_jax.envs import base as envs
from seedrl_jax.run import layout as layout_lib


class FreeStream(envs.EnvStream):
  """Environments that cost nothing: the same observations again and again.

  Episodes have CartPole's shape and `EPISODE` steps.
  """

  EPISODE = 200

  def __init__(self, spec: envs.StreamSpec, num_envs: int, batch_size: int):
    """Prepares the outputs that `recv` hands out in turn."""
    if num_envs % batch_size:
      raise ValueError(f'{batch_size} does not divide {num_envs}.')
    self.spec = spec
    self.num_envs = num_envs
    self.batch_size = batch_size
    self._closed = threading.Event()
    rng = np.random.default_rng(0)
    self._env_ids = np.split(
      np.arange(num_envs, dtype=np.int32), num_envs // batch_size
    )
    self._group = 0
    self._step = 0
    self._observation = rng.normal(size=(16, batch_size, 4)).astype(np.float32)
    self._step_types = {
      t: np.full(batch_size, t, np.uint8) for t in types.StepType
    }
    self._ones = np.ones(batch_size, np.float32)
    self._zeros = np.zeros(batch_size, np.float32)

  def recv(self) -> types.EnvOutput:
    """Returns the next group's step at once."""
    if self._closed.is_set():
      raise envs.StreamClosed('The stream was closed.')
    step = self._step % self.EPISODE
    last = step == self.EPISODE - 1
    kind = types.StepType.LAST if last else types.StepType.MID
    if step == 0:
      kind = types.StepType.FIRST
    output = types.EnvOutput(
      observation=self._observation[self._step % 16],
      reward=self._zeros if step == 0 else self._ones,
      discount=self._zeros if last else self._ones,
      step_type=self._step_types[kind],
      env_id=self._env_ids[self._group],
    )
    self._group = (self._group + 1) % len(self._env_ids)
    self._step += self._group == 0
    return output

  def send(self, action: np.ndarray, env_id: np.ndarray) -> None:
    """Takes the actions, which change nothing."""

  def take_episodes(self) -> list[envs.Episode]:
    """Returns none: nobody looks at their returns."""
    return []

  @property
  def dropped_episodes(self) -> int:
    """Returns 0."""
    return 0

  def close(self) -> None:
    """Ends the stream."""
    self._closed.set()


def make_stream(index: int, plan: layout_lib.StreamPlan) -> FreeStream:
  """Makes the stream of a plan; see `builder.build`."""
  del index
  spec = envs.StreamSpec(
    types.ArraySpec((4,), np.dtype(np.float32)), types.discrete(2), 1, 'free'
  )
  return FreeStream(spec, len(plan.global_env_id), plan.batch_size)
