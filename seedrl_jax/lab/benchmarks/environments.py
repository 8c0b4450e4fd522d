"""Environments that cost nothing, and observations for benchmarks."""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import ml_collections
import numpy as np

from seedrl_jax import types
from seedrl_jax.envs import action_masks, factory
from seedrl_jax.envs import base as envs
from seedrl_jax.run import layout as layout_lib
from seedrl_jax.run import opening

_EPISODE_STEPS = 200
# `FreeStream` repeats this many observations.
_PERIOD = 16
# Sets of random actions of a stream, which are used in a cycle.
_ACTIONS = 64


class FreeStream(envs.EnvStream):
  """Environments that cost nothing: they repeat the same observations."""

  def __init__(self, spec: types.StreamSpec, num_envs: int, batch_size: int):
    """`batch_size` must divide `num_envs`."""
    self.spec = spec
    self.num_envs = num_envs
    self.batch_size = self.min_batch_size = batch_size
    self._closed = False
    groups = num_envs // batch_size
    self._env_ids = np.split(np.arange(num_envs, dtype=np.int32), groups)
    self._received = 0
    rng = np.random.default_rng(0)
    self._observations = [
      random_observation(rng, spec.observation, (batch_size,))
      for _ in range(_PERIOD)
    ]
    self._step_types = {
      t: np.full(batch_size, t, np.uint8) for t in types.StepType
    }
    self._ones = np.ones(batch_size, np.float32)
    self._zeros = np.zeros(batch_size, np.float32)

  def recv(self) -> types.EnvOutput:
    if self._closed:
      raise envs.StreamClosed('The stream was closed.')
    step, group = divmod(self._received, len(self._env_ids))
    self._received += 1
    kind = types.StepType.MID
    if step % _EPISODE_STEPS == 0:
      kind = types.StepType.FIRST
    elif step % _EPISODE_STEPS == _EPISODE_STEPS - 1:
      kind = types.StepType.LAST
    return types.EnvOutput(
      observation=self._observations[step % _PERIOD],
      reward=self._zeros if kind == types.StepType.FIRST else self._ones,
      discount=self._zeros if kind == types.StepType.LAST else self._ones,
      step_type=self._step_types[kind],
      env_id=self._env_ids[group],
    )

  def send(self, action: np.ndarray, env_id: np.ndarray) -> None:
    """Ignores the actions."""

  def take_episodes(self) -> list[envs.Episode]:
    return []

  def close(self) -> None:
    self._closed = True


def free_streams(config: ml_collections.ConfigDict) -> opening.MakeStream:
  """Returns a maker of free streams with the configured shapes."""
  spec = factory.make_spec(config.env)._replace(name='free')

  def make(index: int, share: layout_lib.StreamShare) -> FreeStream:
    del index
    return FreeStream(spec, len(share.global_env_id), share.batch_size)

  return make


def act_randomly(stream: envs.EnvStream) -> Callable[[], int]:
  """Returns a function that answers a batch with random actions.

  It returns the number of steps in the batch; resets are none.
  """
  rng = np.random.default_rng(0)
  actions = stream.spec.action.sample(rng, _ACTIONS, stream.batch_size)
  batches = itertools.cycle(actions)

  def act() -> int:
    output = stream.recv()
    action = next(batches)[: len(output.env_id)]
    if stream.spec.action_mask:
      action = action_masks.sample(stream.spec, rng, output.observation)
    stream.send(action, output.env_id)
    return int(np.count_nonzero(output.step_type != types.StepType.FIRST))

  return act


def random_observation(
  rng: np.random.Generator, spec: types.Nest, leading: tuple[int, ...]
) -> Any:
  """Returns a nest of `[*leading, ...]` arrays for a nest of `ArraySpec`."""

  def random(s: types.ArraySpec) -> np.ndarray:
    shape = (*leading, *s.shape)
    if s.dtype == np.uint8:
      return rng.integers(0, 256, shape, np.uint8)
    return rng.uniform(size=shape).astype(s.dtype)

  return jax.tree.map(random, spec, is_leaf=types.is_spec)
