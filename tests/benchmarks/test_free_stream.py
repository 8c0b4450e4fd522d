"""Tests of `seedrl_jax.benchmarks.free_stream`."""

import jax
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.benchmarks import free_stream
from seedrl_jax.envs import base as envs
from seedrl_jax.run import layout as layout_lib


def _make(num_envs=4, batch_size=2):
  plan = layout_lib.StreamPlan(
    device=jax.devices()[0],
    num_train=num_envs,
    global_env_id=np.arange(num_envs, dtype=np.int32),
    batch_size=batch_size,
  )
  return free_stream.make_stream(0, plan)


def test_groups_take_turns_and_episodes_have_a_first_and_a_last_step():
  stream = _make()
  kinds = {0: [], 2: []}
  for _ in range(2 * (stream.EPISODE + 1)):
    output = stream.recv()
    stream.send(np.zeros(2, np.int32), output.env_id)
    assert len(set(output.step_type.tolist())) == 1
    kinds[int(output.env_id[0])].append(output)
  for outputs in kinds.values():
    first, last, following = outputs[0], outputs[-2], outputs[-1]
    assert first.step_type[0] == types.StepType.FIRST
    assert first.reward[0] == 0 and first.discount[0] == 1
    assert last.step_type[0] == types.StepType.LAST
    assert last.reward[0] == 1 and last.discount[0] == 0
    assert following.step_type[0] == types.StepType.FIRST


def test_matches_its_spec_and_ends_when_closed():
  stream = _make()
  output = stream.recv()
  assert output.observation.shape == (2, *stream.spec.observation.shape)
  assert output.observation.dtype == stream.spec.observation.dtype
  assert stream.take_episodes() == [] and stream.dropped_episodes == 0
  stream.close()
  with pytest.raises(envs.StreamClosed):
    stream.recv()


def test_refuses_uneven_groups():
  with pytest.raises(ValueError, match='3 does not divide 4'):
    _make(4, 3)
