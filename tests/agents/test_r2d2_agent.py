"""Tests the R2D2 agent through the interface of `agents.base`."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from seedrl_jax import types
from seedrl_jax.agents import base
from seedrl_jax.agents.r2d2 import agent as agent_lib
from seedrl_jax.networks import network as network_lib
from tests.agents import r2d2_reference, r2d2_sequences, sequences
from tests.networks import parameters

_LENGTH, _BURN_IN = 4, 2
_ENV_SPEC = r2d2_sequences.ENV_SPEC


class _Agent:
  """The agent, its loss and the loss's configuration."""

  def __init__(self, **changes):
    config = r2d2_sequences.config(**changes)
    self.agent = base.load_agent(config, _ENV_SPEC)
    self.config = config.loss
    self.act, self.initial_core = self.agent.act, self.agent.initial_core
    network = network_lib.make_network(config.network, _ENV_SPEC)
    sizes = (config.network.dueling, config.network.head_hidden_size)
    self.loss = agent_lib.make_loss(config, agent_lib.QNetwork(network, *sizes))

  def init(self, key):
    return self.agent.init(key).params


def _agent(**changes):
  agent = _Agent(**changes)
  return agent, _params(agent), agent.config


def _params(agent, seed=0):
  return parameters.draw(agent.init, jax.random.key(0), seed=seed)


def _random_core(agent, batch, seed=0):
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda x: rng.normal(size=x.shape).astype(x.dtype),
    agent.initial_core(batch),
  )


def _batch(agent, length=_BURN_IN + _LENGTH, seed=0):
  rng = np.random.default_rng(seed)
  steps = r2d2_sequences.steps_with_ends(rng, length)
  width = steps.reward.shape[1]
  batch = sequences.batch_of(steps, _random_core(agent, width))
  weight = rng.uniform(0.1, 1.0, width).astype(np.float32)
  return batch._replace(weight=weight)


def _unroll(agent, params, batch, until=None):
  """Acts step by step; returns each step's values and the last core."""
  steps, core = batch.unroll.steps, batch.unroll.initial_core
  act, values = jax.jit(agent.act), []
  for t in range(until or len(steps.reward)):
    step = jax.tree.map(lambda x, t=t: x[t], types.agent_input(steps))
    ids = np.zeros(steps.reward.shape[1], np.int32)
    output, core = act(params, jax.random.key(t), step, core, ids)
    values.append(output.q_values)
  return np.stack(values), core


def _after_burn_in(steps):
  return jax.tree.map(lambda x: x[_BURN_IN:], steps)


def _goes_on_past_burn_in(steps):
  """Environments without a reset from the start through the burn-in."""
  result = (steps.step_type[: _BURN_IN + 2] == types.StepType.MID).all(0)
  assert result.sum() > 5
  return result


def test_act_gives_what_the_seam_promises():
  agent, _, _ = _agent()
  state = jax.jit(agent.agent.init)(jax.random.key(0))
  chex.assert_trees_all_equal(state.target_params, state.params)
  params = agent.agent.acting_params(state)
  step = jax.tree.map(
    lambda x: x[0], types.agent_input(_batch(agent).unroll.steps)
  )
  batch = step.reward.size
  core = agent.initial_core(batch)
  output, new_core = jax.jit(agent.act)(
    params, jax.random.key(1), step, core, np.arange(batch)
  )
  chex.assert_shape(output.action, (batch,))
  chex.assert_shape(output.q_values, (batch, 3))
  chex.assert_type(list(output), [jnp.int32, jnp.float32])
  chex.assert_trees_all_equal_shapes_and_dtypes(core, new_core)
  chex.assert_type(jax.tree.leaves(params), jnp.float32)


@pytest.mark.parametrize(('burn_in', 'lookahead'), [(0, 0), (40, 0), (2, 3)])
def test_overlap(burn_in, lookahead):
  agent, _, _ = _agent(burn_in=burn_in, lookahead=lookahead)
  assert agent.agent.overlap == burn_in + lookahead + 1
  steps = burn_in + _LENGTH + lookahead + 1
  assert agent.agent.num_transitions(_LENGTH) == steps - 1


def test_environments_explore_by_their_id():
  agent, params, _ = _agent(**{
    'exploration.epsilon_base': 1.0,
    'exploration.eval_epsilon': 0.0,
  })
  step = types.AgentInput(
    observation=np.ones((600, 2), np.float32),
    reward=np.zeros(600, np.float32),
    previous_action=np.zeros(600, np.int32),
    first=np.ones(600, bool),
  )
  # Ids 0 to 5 train, 6 and 7 evaluate.
  env_id = np.arange(600) % 8
  output, _ = jax.jit(agent.act)(
    params, jax.random.key(0), step, agent.initial_core(600), env_id
  )
  output = jax.device_get(output)
  best = np.argmax(output.q_values[0])
  assert (output.action[env_id >= 6] == best).all()
  counts = np.bincount(output.action[env_id < 6], minlength=3)
  assert counts.min() > 100


@pytest.mark.parametrize(
  ('lookahead', 'network'),
  [
    (0, {}),
    (2, {'network.dueling': False, 'network.head_hidden_size': 0}),
    (2, {'network.lstm_size': 0, 'network.use_previous_action': False}),
    (0, {'network.frame_stack': 3}),
  ],
)
def test_loss_is_what_stepping_by_hand_gives(lookahead, network):
  """Recomputes burn-in, both cores, TD errors and priorities in NumPy."""
  agent, params, config = _agent(lookahead=lookahead, **network)
  target_params = _params(agent, seed=1)
  batch = _batch(agent, _BURN_IN + _LENGTH + lookahead)
  value, output = jax.jit(agent.loss)(
    params, target_params, batch, jax.random.key(0)
  )
  q, target_q = (
    _unroll(agent, p, batch)[0][_BURN_IN:] for p in (params, target_params)
  )
  steps = _after_burn_in(batch.unroll.steps)
  errors = r2d2_reference.td_errors(config, q, target_q, steps, _LENGTH)
  expected = r2d2_reference.loss(config, errors, batch.weight, _LENGTH)
  np.testing.assert_allclose(value, expected, rtol=1e-5)
  np.testing.assert_allclose(
    output.priorities,
    r2d2_reference.priorities(config, errors),
    rtol=1e-5,
    atol=1e-5,
  )


def test_no_gradient_through_burn_in():
  agent, params, _ = _agent()
  batch = _batch(agent)
  gradient, _ = jax.jit(jax.grad(agent.loss, has_aux=True))(
    params, params, batch, jax.random.key(0)
  )
  _, core = _unroll(agent, params, batch, until=_BURN_IN)
  without, _, _ = _agent(burn_in=0)
  unroll = types.Unroll(
    _after_burn_in(batch.unroll.steps), core, batch.unroll.env_id
  )
  expected, _ = jax.jit(jax.grad(without.loss, has_aux=True))(
    params, params, types.Batch(unroll, batch.weight), jax.random.key(0)
  )
  chex.assert_trees_all_close(gradient, expected, rtol=1e-4, atol=1e-6)
  # Training through the burn-in would give another gradient.
  longer, _, _ = _agent(burn_in=0, unroll_length=_BURN_IN + _LENGTH)
  through, _ = jax.jit(jax.grad(longer.loss, has_aux=True))(
    params, params, batch, jax.random.key(0)
  )
  other, same = (g['network']['core']['recurrent'] for g in (through, gradient))
  assert not np.allclose(other, same, rtol=1e-2)


def test_burn_in_reaches_only_the_episode_that_goes_on():
  agent, params, _ = _agent()
  batch = _batch(agent)
  steps = batch.unroll.steps
  observation = steps.observation.copy()
  observation[:_BURN_IN] += 1.0
  other = batch._replace(
    unroll=batch.unroll._replace(steps=steps._replace(observation=observation))
  )
  before, after = (
    np.asarray(jax.jit(agent.loss)(params, params, b, None)[1].priorities)
    for b in (batch, other)
  )
  # Environments whose episode starts at the first trained step.
  fresh = steps.step_type[_BURN_IN] == types.StepType.FIRST
  goes_on = _goes_on_past_burn_in(steps)
  assert fresh.sum() >= 2
  np.testing.assert_array_equal(before[fresh], after[fresh])
  assert (before[goes_on] != after[goes_on]).all()


def test_target_network_is_a_constant():
  agent, params, _ = _agent()
  target_params = _params(agent, seed=1)
  gradient, _ = jax.jit(jax.grad(agent.loss, argnums=1, has_aux=True))(
    params, target_params, _batch(agent), jax.random.key(0)
  )
  for g in jax.tree.leaves(gradient):
    np.testing.assert_array_equal(g, 0.0)


def test_every_parameter_is_trained():
  agent, _, _ = _agent()
  params = jax.jit(agent.init)(jax.random.key(0))
  gradient, output = jax.jit(jax.grad(agent.loss, has_aux=True))(
    params, params, _batch(agent), jax.random.key(0)
  )
  for path, g in jax.tree_util.tree_leaves_with_path(gradient):
    assert np.abs(g).max() > 0, jax.tree_util.keystr(path)
  chex.assert_tree_all_finite(output)


def test_zero_state_forgets_memory_and_keeps_frames():
  stored, params, _ = _agent(**{'network.frame_stack': 2})
  zero, _, _ = _agent(**{
    'network.frame_stack': 2,
    'loss.initial_state': 'zero',
  })
  batch = _batch(stored)
  core = batch.unroll.initial_core
  assert core.frames
  forgotten = core._replace(lstm=jax.tree.map(np.zeros_like, core.lstm))
  priorities = [
    jax.jit(agent.loss)(
      params,
      params,
      batch._replace(unroll=batch.unroll._replace(initial_core=c)),
      None,
    )[1].priorities
    for agent, c in ((zero, core), (stored, forgotten), (stored, core))
  ]
  np.testing.assert_array_equal(priorities[0], priorities[1])
  goes_on = _goes_on_past_burn_in(batch.unroll.steps)
  assert (priorities[0] != priorities[2])[goes_on].all()


def test_single_transitions_have_all_their_rewards():
  agent, params, _ = _agent(**{
    'unroll_length': 1,
    'burn_in': 0,
    'lookahead': 2,
    'network.lstm_size': 0,
    'loss.rescale_epsilon': -1.0,
    'loss.discount': 0.9,
  })
  rng = np.random.default_rng(0)
  steps = r2d2_sequences.random_steps(rng, 3, 4)
  steps.step_type[:], steps.discount[:] = types.StepType.MID, 1.0
  steps.step_type[1:3, 3] = types.StepType.LAST, types.StepType.FIRST
  steps.step_type[:2, 2] = types.StepType.LAST, types.StepType.FIRST
  batch = sequences.batch_of(steps, agent.initial_core(4))
  q, _ = _unroll(agent, params, batch)
  r, best = steps.reward, q.max(-1)
  target = r[1] + 0.9 * r[2] + 0.81 * r[3] + 0.729 * best[3]
  target[3] = r[1, 3] + 0.9 * best[1, 3]
  error = target - q[0, np.arange(4), steps.agent_output.action[0]]
  error[2] = 0.0  # From LAST to FIRST: no transition.
  (value, output), gradient = jax.jit(
    jax.value_and_grad(agent.loss, has_aux=True)
  )(params, params, batch, None)
  np.testing.assert_allclose(output.priorities, np.abs(error), rtol=1e-5)
  np.testing.assert_allclose(value, 0.5 * np.mean(error**2), rtol=1e-5)
  chex.assert_tree_all_finite(gradient)


def test_initial_priorities_are_those_of_the_values_that_acted():
  agent, params, _ = _agent()
  batch = _batch(agent)
  q, _ = _unroll(agent, params, batch)
  steps = batch.unroll.steps
  acted = steps.agent_output._replace(q_values=q)
  _, output = jax.jit(agent.loss)(params, params, batch, None)
  initial = jax.jit(agent.agent.initial_priorities)(
    steps._replace(observation=(), agent_output=acted)
  )
  # The loss with the acting parameters in both networks.
  np.testing.assert_allclose(initial, output.priorities, rtol=1e-4, atol=1e-5)


def test_learns_which_action_pays():
  agent, _, _ = _agent(**{
    'unroll_length': 1,
    'burn_in': 0,
    'network.lstm_size': 0,
    'network.hidden_sizes': (32,),
    'network.head_hidden_size': 16,
    'loss.n_steps': 1,
  })
  rng = np.random.default_rng(0)
  steps = r2d2_sequences.random_steps(rng, 2, 256)
  steps = jax.tree.map(lambda x: x[:2], steps)
  # One-step episodes; the action that matches the observation is rewarded.
  right = (steps.observation[0] > 0).sum(-1)
  steps.reward[0] = 0.0
  steps.reward[1] = steps.agent_output.action[0] == right
  steps.discount[1] = 0.0
  steps.step_type[0] = types.StepType.FIRST
  steps.step_type[1] = types.StepType.LAST
  batch = sequences.batch_of(steps, agent.initial_core(256))
  params = jax.jit(agent.init)(jax.random.key(0))
  optimizer = optax.adam(0.03)

  @jax.jit
  def update(params, state):
    gradient, _ = jax.grad(agent.loss, has_aux=True)(
      params, params, batch, None
    )
    change, state = optimizer.update(gradient, state)
    return optax.apply_updates(params, change), state

  def share(params):
    q, _ = _unroll(agent, params, batch, until=1)
    return np.mean(q[0].argmax(-1) == right)

  assert share(params) < 0.8
  state = jax.jit(optimizer.init)(params)
  for _ in range(100):
    params, state = update(params, state)
  assert share(params) > 0.9
