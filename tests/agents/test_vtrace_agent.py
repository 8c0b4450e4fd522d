"""Tests the V-trace agent through the interface of `agents.base`."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs import base as base_config
from seedrl_jax import types
from seedrl_jax.agents import base
from seedrl_jax.agents.vtrace import agent as agent_lib
from seedrl_jax.agents.vtrace import loss as loss_lib
from seedrl_jax.agents.vtrace import networks
from seedrl_jax.networks import network as network_lib
from tests.agents import sequences
from tests.networks import parameters

_LENGTH, _BATCH, _ACTIONS = 5, 4, 3
_KEY = jax.random.key(0)
_ENV_SPEC = types.EnvSpec(
  env_id='toy',
  observation=types.ArraySpec((2,), np.dtype('float32')),
  action=types.discrete(_ACTIONS),
  action_repeat=1,
  num_envs=6,
  num_eval_envs=2,
)


def _config(**changes):
  config = base_config.get_config()
  config.unroll_length, config.batch_size = _LENGTH, _BATCH
  config.network.hidden_sizes = (8,)
  config.network.lstm_size = 4
  config.network.use_previous_action = True
  config.update_from_flattened_dict(changes)
  return config


def _agent(**changes):
  """Returns the agent, random parameters, and its jitted loss."""
  config = _config(**changes)
  agent = base.load_agent(config, _ENV_SPEC)
  params = parameters.draw(lambda key: agent.init(key).params, _KEY)
  if 'entropy_cost' in params:
    params['entropy_cost'] = _entropy_cost(agent)
  network = network_lib.make_network(config.network, _ENV_SPEC)
  loss = agent_lib.make_loss(config, networks.ActorCritic(network))
  return agent, params, functools.partial(loss, key=None, target_params=())


def _initial(agent):
  return jax.jit(lambda key: agent.init(key).params)(_KEY)


def _entropy_cost(agent):
  return jax.jit(lambda key: agent.init(key).params['entropy_cost'])(_KEY)


def _batch(agent, seed=0):
  rng = np.random.default_rng(seed)
  steps = sequences.random_steps(rng, _LENGTH, _BATCH, _ACTIONS)
  return sequences.batch_of(steps, agent.initial_core(_BATCH))


def _step(batch_size):
  rng = np.random.default_rng(3)
  return types.AgentInput(
    observation=rng.normal(size=(batch_size, 2)).astype(np.float32),
    reward=np.zeros(batch_size, np.float32),
    previous_action=np.zeros(batch_size, np.int32),
    first=np.ones(batch_size, bool),
  )


def test_act_gives_what_the_seam_promises():
  agent, _, _ = _agent()
  state, core = agent.init(_KEY), agent.initial_core(8)
  params = agent.acting_params(state)
  output, new_core = jax.jit(agent.act)(
    params, jax.random.key(1), _step(8), core, np.arange(8)
  )
  chex.assert_shape(output.action, (8,))
  chex.assert_shape(output.policy_logits, (8, _ACTIONS))
  chex.assert_type(list(output), [jnp.int32, jnp.float32])
  chex.assert_trees_all_equal_shapes_and_dtypes(core, new_core)
  chex.assert_type(jax.tree.leaves(params), jnp.float32)
  assert agent.overlap == agent.updates_per_batch == 1
  assert state.target_params == ()


def test_training_samples_and_evaluation_is_greedy():
  agent, params, _ = _agent()
  params = params['network']
  # One policy for all steps, neither uniform nor greedy.
  policy = params['policy']['Dense_0']
  policy['kernel'] *= 0.0
  probability = np.array([0.2, 0.5, 0.3])
  policy['bias'] = np.log(probability)
  # Ids 0 to 5 train; each occurs many times in the batch.
  env_id = np.tile(np.arange(8), 1000)
  output, _ = jax.jit(agent.act)(
    params, jax.random.key(0), _step(8000), agent.initial_core(8000), env_id
  )
  action = np.asarray(output.action)
  assert (action[env_id >= 6] == 1).all()
  trained = action[env_id < 6]
  share = np.bincount(trained, minlength=3) / trained.size
  # Five standard errors of 6000 draws.
  np.testing.assert_allclose(share, probability, atol=0.033)


def test_on_policy_batch_has_weight_one():
  agent, params, loss = _agent()
  batch = _batch(agent)
  steps, core = batch.unroll.steps, batch.unroll.initial_core
  outputs = []
  act = jax.jit(agent.act)
  for t in range(_LENGTH + 1):
    step = jax.tree.map(lambda x, t=t: x[t], types.agent_input(steps))
    output, core = act(
      params['network'], jax.random.key(t), step, core, np.arange(4)
    )
    outputs.append(output)
  acted = jax.tree.map(lambda *x: np.stack(x), *outputs)
  batch = batch._replace(
    unroll=batch.unroll._replace(steps=steps._replace(agent_output=acted))
  )
  _, output = jax.jit(loss)(params, batch=batch)
  np.testing.assert_allclose(output.metrics['rho'], 1.0, atol=1e-5)
  np.testing.assert_allclose(output.metrics['kl'], 0.0, atol=1e-5)


def test_pieces_average_to_the_whole():
  agent, params, loss = _agent(**{
    'loss.reduction': 'sum',
    'loss.target_entropy': 0.5,
  })
  batch = _batch(agent)
  steps = batch.unroll.steps
  gradient = jax.jit(jax.grad(loss, has_aux=True))
  whole, _ = gradient(params, batch=batch)
  pieces = []
  for part in (slice(0, 2), slice(2, 4)):
    piece = sequences.batch_of(
      jax.tree.map(lambda x, part=part: x[:, part], steps),
      agent.initial_core(2),
    )
    pieces.append(gradient(params, batch=piece)[0])
  mean = jax.tree.map(lambda *x: np.mean(x, axis=0), *pieces)
  chex.assert_trees_all_close(mean, whole, rtol=1e-4, atol=1e-6)


def test_sum_is_the_mean_times_the_steps_of_the_batch():
  agent, params, averaging = _agent()
  _, _, summing = _agent(**{'loss.reduction': 'sum'})
  batch = _batch(agent)
  mean, total = (
    jax.jit(loss)(params, batch=batch)[0] for loss in (averaging, summing)
  )
  np.testing.assert_allclose(total, mean * _LENGTH * _BATCH, rtol=1e-5)


def test_entropy_cost_is_a_parameter_where_it_adapts():
  _, params, _ = _agent()
  assert set(params) == {'network'}
  agent, _, loss = _agent(**{'loss.target_entropy': 0.5})
  params, batch = _initial(agent), _batch(agent)
  gradient, output = jax.jit(jax.grad(loss, has_aux=True))(params, batch=batch)
  np.testing.assert_allclose(output.metrics['entropy_cost'], 0.01, rtol=1e-5)
  # Policies start nearly uniform, at ln 3: the cost must fall.
  assert gradient['entropy_cost'] > 0


def test_entropy_cost_comes_back_from_its_bound():
  config = _config(**{'loss.target_entropy': 0.5})
  agent = base.load_agent(config, _ENV_SPEC)
  speed = config.loss.entropy_cost_adjustment_speed
  optimizer = optax.adam(1e-3)

  def update(carry, excess):
    params, state = carry
    gradient = jax.grad(lambda p: jnp.exp(speed * p['entropy_cost']) * excess)(
      params
    )
    updates, state = optimizer.update(gradient, state)
    params = loss_lib.project(config.loss, optax.apply_updates(params, updates))
    return (params, state), jnp.exp(speed * params['entropy_cost'])

  params = {'entropy_cost': _entropy_cost(agent)}
  start = np.exp(speed * params['entropy_cost'])
  carry = (params, optimizer.init(params))
  carry, _ = jax.lax.scan(update, carry, np.full(50_000, 0.5))
  _, costs = jax.lax.scan(update, carry, np.full(25_000, -0.5))
  # Without a bound it would take half as many updates as before.
  assert 0 < np.argmax(np.asarray(costs) > start) < 500


def test_every_parameter_is_trained():
  agent, _, loss = _agent()
  gradient, output = jax.jit(jax.grad(loss, has_aux=True))(
    _initial(agent), batch=_batch(agent)
  )
  for path, g in jax.tree_util.tree_leaves_with_path(gradient):
    assert np.abs(g).max() > 0, jax.tree_util.keystr(path)
  chex.assert_tree_all_finite(output.metrics)
  for value in output.metrics.values():
    chex.assert_rank(value, 0)


def test_unknown_agent_is_refused():
  config = _config()
  config.agent = 'ppo'
  with pytest.raises(ValueError, match='built in are r2d2 and vtrace'):
    base.load_agent(config, _ENV_SPEC)
