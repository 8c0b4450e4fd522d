"""Tests initialisation and acting of agents with one network."""

from typing import NamedTuple

import chex
import flax.linen as nn
import jax
import numpy as np

from configs import base as base_config
from seedrl_jax import types
from seedrl_jax.agents import acting
from seedrl_jax.networks import network as network_lib
from tests.networks import parameters

_BATCH, _ACTIONS = 3, 4
_ENV_SPEC = types.EnvSpec(
  'toy',
  types.ArraySpec((2,), np.dtype('float32')),
  types.discrete(_ACTIONS),
  1,
  8,
  2,
)


class _Output(NamedTuple):
  key: jax.Array
  values: jax.Array
  env_id: jax.Array


class _Module(nn.Module):
  """A head on a network."""

  network: network_lib.Network

  @nn.compact
  def __call__(self, inputs, core):
    features, core = self.network(inputs, core)
    return {'values': nn.Dense(_ACTIONS)(features)}, core


def _choose(key, outputs, env_id):
  return _Output(key, outputs['values'], env_id)


def _make():
  config = base_config.get_config().network
  config.hidden_sizes, config.lstm_size = (8,), 5
  network = network_lib.make_network(config, _ENV_SPEC)
  module = _Module(network)
  init = acting.make_init(module, network, _ENV_SPEC)
  return module, network, parameters.draw(init, jax.random.key(0))


def test_acting_is_an_unroll_of_one_step():
  module, network, params = _make()
  rng = np.random.default_rng(0)
  step = types.AgentInput(
    observation=rng.normal(size=(_BATCH, 2)).astype(np.float32),
    reward=np.zeros(_BATCH, np.float32),
    previous_action=np.zeros(_BATCH, np.int32),
    first=np.array([True, False, False]),
  )
  core = jax.tree.map(
    lambda x: rng.normal(size=x.shape).astype(x.dtype),
    network.initial_core(_BATCH),
  )
  key, env_id = jax.random.PRNGKey(1), np.arange(_BATCH)
  act = acting.make_act(module, _choose)
  output, new_core = jax.jit(act)(params, key, step, core, env_id)
  unroll = jax.tree.map(lambda x: x[None], step)
  expected, expected_core = jax.jit(module.apply)(
    {'params': params}, unroll, core
  )
  np.testing.assert_array_equal(output.values, expected['values'][0])
  chex.assert_shape(output.values, (_BATCH, _ACTIONS))
  chex.assert_trees_all_equal(new_core, expected_core)
  # The choice gets key and environment ids unchanged.
  chex.assert_trees_all_equal((output.key, output.env_id), (key, env_id))
