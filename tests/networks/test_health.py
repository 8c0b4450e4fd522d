"""Tests of the signs that a network is alive, for every torso and agent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.agents import base as agents
from seedrl_jax.configs import (
  base,
  ppo_pendulum,
  pqn_cartpole,
  r2d2_cartpole,
  sac_pendulum,
)
from seedrl_jax.envs import factory
from seedrl_jax.networks import distributions, heads, health
from seedrl_jax.networks import network as network_lib

_IMAGE = types.ArraySpec((40, 40, 1), np.dtype(np.uint8))
_ACTION = types.discrete(3)
_VECTOR = types.ArraySpec((4,), np.dtype(np.float32))


def _measure(observation=_IMAGE, change=lambda params: params, **network):
  """Measures an actor-critic on random observations `[3, 2, ...]`."""
  config = base.get_config().network
  config.update({'hidden_sizes': (8,), 'dense_size': 8, **network})
  spec = types.EnvSpec(types.StreamSpec(observation, _ACTION, 1, 'toy'), 2, 0)
  module = heads.ActorCritic(
    network_lib.make_network(config, spec), distributions.Categorical((3,))
  )
  init = network_lib.make_init(module, module, spec)
  params = change(init(jax.random.key(0)))
  rng = np.random.default_rng(0)
  dtype, shape = observation.dtype, (3, 2, *observation.shape)
  inputs = types.AgentInput(
    rng.integers(0, 255, shape).astype(dtype),
    np.zeros((3, 2), np.float32),
    np.zeros((3, 2), np.int32),
    np.zeros((3, 2), bool),
  )
  measure = health.make_measure(module)
  return measure(params, inputs, module.initial_core(2))


def _kill(params):
  """Makes half of the last dense layer's units negative for all inputs."""

  def change(path, x):
    name = jax.tree_util.keystr(path)
    is_bias = 'torso' in name and 'Dense_0' in name and x.ndim == 1
    return x.at[: len(x) // 2].set(-1e6) if is_bias else x

  return jax.tree_util.tree_map_with_path(change, params)


@pytest.mark.parametrize(
  'network',
  [
    {'torso': 'shallow'},
    {'torso': 'nature', 'layer_norm': True, 'dense_size': 64},
    {'torso': 'resnet'},
    {'torso': 'resnet', 'tpu_chunk': 4},
    {'torso': 'shallow', 'frame_stack': 2, 'lstm_size': 4},
    {'torso': 'mlp', 'observation': _VECTOR},
  ],
  ids=str,
)
def test_dead_units_of_the_last_dense_layer_are_counted(network):
  alive, killed = _measure(**network), _measure(change=_kill, **network)
  assert alive['health/dead_share'] < 0.5
  least = 0.25 if network.get('layer_norm') else 0.5
  assert least <= killed['health/dead_share'] < 1.0
  dead = _measure(
    change=lambda params: jax.tree.map(jnp.zeros_like, params), **network
  )
  assert dead['health/dead_share'] == 1.0
  assert dead['health/value_std'] == 0.0 < alive['health/value_std']


def test_layers_without_relu_are_left_out():
  metrics = _measure(_VECTOR, activation='tanh')
  assert metrics.keys() == {'health/value_std'}


@pytest.mark.parametrize(
  ('get_config', 'env_id', 'has_value'),
  [
    (base.get_config, 'Catch-v0', True),
    (ppo_pendulum.get_config, 'Pendulum-v1', True),
    (r2d2_cartpole.get_config, 'CartPole-v1', True),
    (pqn_cartpole.get_config, 'CartPole-v1', True),
    # The critics' values are in the metrics of the update.
    (sac_pendulum.get_config, 'Pendulum-v1', False),
  ],
)
def test_every_agent_measures_its_acting_parameters(
  get_config, env_id, has_value
):
  config = get_config()
  config.env.id = env_id
  config.network.activation = 'relu'
  env_spec = factory.make_env_spec(config)
  agent = agents.load_agent(config, env_spec)
  params = agent.acting_params(agent.init(jax.random.key(0)))
  inputs = network_lib.dummy_inputs(env_spec)
  metrics = agent.measure(params, inputs, agent.initial_core(1))
  names = {'health/dead_share'}
  assert (metrics.keys() > names) == has_value and metrics.keys() >= names
