"""The arrays of an unroll."""

from typing import Any

import jax
import numpy as np

from seedrl_jax import types
from seedrl_jax.envs import base as envs


def unroll_spec(
  env_spec: types.EnvSpec | envs.StreamSpec,
  num_transitions: int,
  agent_output: types.Nest,
  core: types.Nest,
) -> types.Unroll:
  """Returns `ArraySpec`s of a stored unroll of T transitions."""

  def step(spec: types.ArraySpec | types.ActionSpec) -> types.ArraySpec:
    return types.ArraySpec((num_transitions + 1, *spec.shape), spec.dtype)

  def scalar(dtype: Any) -> types.ArraySpec:
    return types.ArraySpec((num_transitions + 1,), np.dtype(dtype))

  return types.Unroll(
    steps=types.Steps(
      observation=jax.tree.map(
        step, env_spec.observation, is_leaf=types.is_spec
      ),
      reward=scalar(np.float32),
      discount=scalar(np.float32),
      step_type=scalar(np.uint8),
      previous_action=step(env_spec.action),
      agent_output=jax.tree.map(step, agent_output, is_leaf=types.is_spec),
      parameter_version=scalar(np.int32),
    ),
    initial_core=core,
    env_id=types.ArraySpec((), np.dtype(np.int32)),
  )


def blank_batch(spec: types.Unroll, width: int) -> types.Batch:
  """Returns a batch of zeros for one training device, to compile with."""

  def steps(s: types.ArraySpec) -> np.ndarray:
    return np.zeros((s.shape[0], width, *s.shape[1:]), s.dtype)

  def rows(s: types.ArraySpec) -> np.ndarray:
    return np.zeros((width, *s.shape), s.dtype)

  return types.Batch(
    types.Unroll(
      jax.tree.map(steps, spec.steps, is_leaf=types.is_spec),
      jax.tree.map(rows, spec.initial_core, is_leaf=types.is_spec),
      rows(spec.env_id),
    ),
    weight=np.ones(width, np.float32),
  )
