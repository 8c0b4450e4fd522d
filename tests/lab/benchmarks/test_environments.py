"""Tests of `seedrl_jax.lab.benchmarks.environments`."""

import jax
import ml_collections
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.envs import base as envs
from seedrl_jax.envs import factory
from seedrl_jax.lab.benchmarks import environments
from seedrl_jax.run import layout as layout_lib
from tests import runs


def _make(config):
  share = layout_lib.StreamShare(
    device=jax.devices()[0],
    num_train=4,
    global_env_id=np.arange(4, dtype=np.int32),
    batch_size=2,
  )
  return environments.free_streams(config)(0, share)


def test_groups_take_turns_and_episodes_have_a_first_and_a_last_step():
  stream = _make(runs.tiny())
  kinds = {0: [], 2: []}
  for _ in range(2 * (200 + 1)):
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
  stream.close()
  with pytest.raises(envs.StreamClosed):
    stream.recv()


def _toy(kind):
  return {
    'env__factory': 'tests.envs.toys:echo',
    'env__factory_kwargs': ml_collections.ConfigDict({'kind': kind}),
  }


@pytest.mark.parametrize(
  'values', [_toy('joint'), _toy('box'), {'env__id': 'Pong-v5'}]
)
def test_looks_like_the_configured_environments(values):
  config = runs.tiny(**values)
  stream = _make(config)
  spec = factory.make_spec(config.env)
  assert stream.spec == spec._replace(name='free')
  output = stream.recv()
  assert output.observation.shape == (2, *spec.observation.shape)
  assert output.observation.dtype == spec.observation.dtype
