"""Tests of `seedrl_jax.inference.unrolls`."""

import numpy as np

from seedrl_jax import types
from seedrl_jax.inference import unrolls


def test_unroll_spec_has_columns_as_environment_and_agent_say():
  action = types.ActionSpec((2,), np.dtype(np.float32), (-1, -1), (1, 1))
  env_spec = types.EnvSpec(
    'toy', {'x': types.ArraySpec((3,), np.dtype(np.uint8))}, action, 1, 4, 0
  )
  core = types.ArraySpec((7,), np.dtype(np.float32))
  output = {'action': types.ArraySpec((2,), np.dtype(np.float32))}
  spec = unrolls.unroll_spec(env_spec, 5, output, core)
  assert spec.steps.observation['x'].shape == (6, 3)
  assert spec.steps.agent_output['action'].shape == (6, 2)
  assert spec.steps.previous_action == ((6, 2), np.float32)
  assert spec.steps.reward == types.ArraySpec((6,), np.dtype(np.float32))
  assert spec.initial_core == core
  assert spec.env_id.shape == ()


def test_blank_batch_is_time_major():
  env_spec = types.EnvSpec(
    'toy', types.ArraySpec((), np.dtype(np.uint8)), types.discrete(2), 1, 4, 0
  )
  core = types.ArraySpec((7,), np.dtype(np.float32))
  spec = unrolls.unroll_spec(env_spec, 5, (), core)
  batch = unrolls.blank_batch(spec, 3)
  assert batch.unroll.steps.previous_action.shape == (6, 3)
  assert batch.unroll.initial_core.shape == (3, 7)
  assert batch.unroll.env_id.shape == batch.weight.shape == (3,)
