"""Tests R2D2: targets, loss and priorities against NumPy; burn-in; acting."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from seedrl_jax import types
from seedrl_jax.agents import base, exploration, transitions
from seedrl_jax.agents.r2d2 import loss as loss_lib
from seedrl_jax.configs import dqn_atari
from seedrl_jax.networks import heads
from seedrl_jax.networks import network as network_lib
from tests.agents import r2d2_reference, r2d2_sequences, sequences
from tests.networks import parameters

_LENGTH, _BURN_IN = 4, 2
_KEY = jax.random.key(0)
_ENV_SPEC = r2d2_sequences.ENV_SPEC


def _sequence(length=_LENGTH + 2):
  """Returns both networks' values, steps and weights."""
  rng = np.random.default_rng(0)
  steps = r2d2_sequences.steps_with_ends(rng, length)
  shape = steps.agent_output.q_values.shape
  q, target_q = (
    (rng.normal(size=shape) * 4).astype(np.float32) for _ in range(2)
  )
  weight = rng.uniform(0.1, 1.0, shape[1]).astype(np.float32)
  return q, target_q, steps, weight


def _loss(config):
  """Returns the loss, with its gradient by the online network's values."""

  def loss(*args):
    return loss_lib.q_loss(config, *args)

  return jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))


class PureFunctionTest(parameterized.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.parameters(0.0, 1e-3, -1.0)
  def test_rescaling_and_its_inverse(self, epsilon):
    size = np.concatenate([[0.0], np.logspace(-5, 2, 500)])
    x = np.concatenate([-size, size]).astype(np.float32)
    rescaled = self.variant(lambda x: loss_lib.rescale(x, epsilon))(x)
    expected = r2d2_reference.h(x.astype(np.float64), epsilon)
    np.testing.assert_allclose(rescaled, expected, rtol=1e-6, atol=1e-6)
    # Computes h in double precision: only h^-1 has float32 rounding.
    unscaled = self.variant(lambda x: loss_lib.unscale(x, epsilon))(x)
    back = r2d2_reference.h(np.asarray(unscaled, np.float64), epsilon)
    np.testing.assert_allclose(back, x, rtol=2e-6, atol=2e-6)

  @chex.all_variants()
  def test_returns_by_hand(self):
    # The first continues; at step 2 the second is truncated and the third
    # terminated; both restart at step 3.
    trajectory = transitions.Transitions(
      valid=np.array([[1, 1, 1], [1, 1, 1], [1, 0, 0], [1, 1, 1]], bool),
      reward=np.array([[1, 1, 1], [2, 2, 2], [4, 0, 0], [8, 8, 8]], np.float32),
      discount=np.array(
        [[0.5] * 3, [0.5, 0.5, 0.0], [0.5, 0, 0], [0.5] * 3], np.float32
      ),
    )
    value = np.array([[10] * 3, [20] * 3, [40] * 3, [80] * 3], np.float32)
    n_step_returns = functools.partial(loss_lib.n_step_returns, n=3)
    returns = self.variant(n_step_returns)(trajectory, value)
    chex.assert_shape(returns, trajectory.reward.shape)
    expected = np.array([
      # r1 + r2/2 + r3/4 + v3/8, cut off at the ends of episodes.
      [1 + 1 + 1 + 5, 1 + 1 + 5, 1 + 1],
      [2 + 2 + 2 + 10, 2 + 10, 2],
      # The remaining rewards and the last value.
      [4 + 4 + 20, 0, 0],
      [8 + 40, 8 + 40, 8 + 40],
    ])
    np.testing.assert_allclose(
      np.asarray(returns)[trajectory.valid], expected[trajectory.valid]
    )


@pytest.mark.parametrize(
  ('length', 'changes'),
  [
    (_LENGTH, {'priority_eta': 1.0}),
    (_LENGTH, {'n_steps': 5, 'reduction': 'mean', 'priority_eta': 0.5}),
    # The lookahead gives every transition its rewards.
    (_LENGTH + 4, {'n_steps': 5, 'huber_delta': 0.7, 'reward_clip': 1.0}),
    (_LENGTH + 2, {'rescale_epsilon': -1.0, 'double_q': False}),
    (_LENGTH, {'n_steps': 1, 'discount': 0.9, 'reward_scale': 0.7}),
    (_LENGTH, dict(dqn_atari.get_config().loss)),
  ],
)
def test_equals_numpy(length, changes):
  whole = r2d2_sequences.config(unroll_length=_LENGTH)
  config = whole.loss
  config.update(changes)
  q, target_q, steps, weight = _sequence(length)
  (value, output), _ = _loss(whole)(q, target_q, steps, weight)
  errors = r2d2_reference.td_errors(config, q, target_q, steps, _LENGTH)
  priorities = r2d2_reference.priorities(config, errors)
  np.testing.assert_allclose(output.priorities, priorities, rtol=1e-5)
  np.testing.assert_allclose(
    value, r2d2_reference.loss(config, errors, weight, _LENGTH), rtol=1e-5
  )
  valid = [(t, b) for b, e in enumerate(errors) for t in e]
  action = steps.agent_output.action
  targets = [
    r2d2_reference.target(config, q, target_q, steps, t, b) for t, b in valid
  ]
  td_errors = [x for e in errors for x in e.values()]
  metrics = {
    'td_error': np.mean(np.abs(td_errors)),
    'explained_variance': 1.0 - np.var(td_errors) / np.var(targets),
    'masked_share': 1.0 - len(valid) / (_LENGTH * weight.size),
    'q_mean': np.mean([q[t, b, action[t, b]] for t, b in valid]),
    'q_max': np.mean([q[t, b].max() for t, b in valid]),
    'q_target': np.mean(targets),
    'replay/priority_mean': np.mean(priorities),
    'replay/importance_weight_mean': weight.mean(),
  }
  chex.assert_trees_all_close(output.metrics, metrics, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize('lookahead', [0, 2])
@pytest.mark.parametrize('burn_in', [0, 3])
def test_initial_priorities_take_acting_values_for_both_networks(
  burn_in, lookahead
):
  config = r2d2_sequences.config(burn_in=burn_in, unroll_length=_LENGTH)
  steps = r2d2_sequences.steps_with_ends(
    np.random.default_rng(burn_in), burn_in + _LENGTH + lookahead
  )
  result = jax.jit(functools.partial(loss_lib.initial_priorities, config))(
    steps._replace(observation=())
  )
  trained = jax.tree.map(lambda x: x[burn_in:], steps)
  q = trained.agent_output.q_values
  errors = r2d2_reference.td_errors(config.loss, q, q, trained, _LENGTH)
  expected = r2d2_reference.priorities(config.loss, errors)
  np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_only_a_prioritized_replay_has_initial_priorities():
  priorities = [
    _Agent(**{'replay.sampler': sampler}).agent.initial_priorities
    for sampler in ('prioritized', 'uniform')
  ]
  assert priorities[0] is not None and priorities[1] is None


def test_priority_without_a_transition_is_zero():
  none = np.zeros((2, 1))
  errors = loss_lib.TDErrors(none > 0, none, none)
  assert loss_lib.mixed_priorities(errors, 0.9) == 0.0


class _Agent:
  """The agent, its loss and the loss's configuration."""

  def __init__(self, **changes):
    config = r2d2_sequences.config(**changes)
    self.agent = base.load_agent(config, _ENV_SPEC)
    self.config = config.loss
    self.act, self.initial_core = self.agent.act, self.agent.initial_core
    network = network_lib.make_network(config.network, _ENV_SPEC)
    sizes = (config.network.head_hidden_size, config.network.dueling)
    self.loss = loss_lib.make_loss(config, heads.QNetwork(network, *sizes))

  def init(self, key):
    return self.agent.init(key).params

  def params(self, seed=0):
    return parameters.draw(self.init, _KEY, seed=seed)

  def batch(self, length=_BURN_IN + _LENGTH):
    """Returns a batch with a random core state."""
    rng = np.random.default_rng(0)
    steps = r2d2_sequences.steps_with_ends(rng, length)
    width = steps.reward.shape[1]
    core = jax.tree.map(
      lambda x: rng.normal(size=x.shape).astype(x.dtype),
      self.initial_core(width),
    )
    weight = rng.uniform(0.1, 1.0, width).astype(np.float32)
    return sequences.batch_of(steps, core)._replace(weight=weight)

  def priorities(self, batch):
    """Returns those of a batch, the same parameters being in both networks."""
    params = self.params()
    _, output = jax.jit(self.loss)(params, params, batch, None)
    return np.asarray(output.priorities)

  def gradient(self, params, batch):
    gradient = jax.jit(jax.grad(self.loss, has_aux=True))
    return gradient(params, params, batch, None)[0]


def _unroll(agent, params, batch, until=None):
  """Acts step by step; returns each step's values and the last core."""
  steps, core = batch.unroll.steps, batch.unroll.initial_core
  act, values = jax.jit(agent.act), []
  for t in range(until or len(steps.reward)):
    step = jax.tree.map(lambda x, t=t: x[t], types.agent_input(steps))
    ids = np.zeros(steps.reward.shape[1], np.int32)
    acting_params = exploration.ActingParams(params, ())
    output, core = act(acting_params, _KEY, step, core, ids)
    values.append(output.q_values)
  return np.stack(values), core


def _after_burn_in(steps):
  return jax.tree.map(lambda x: x[_BURN_IN:], steps)


def _goes_on_past_burn_in(steps):
  """Environments without a reset from the start through the burn-in."""
  result = (steps.step_type[: _BURN_IN + 2] == types.StepType.MID).all(0)
  assert result.sum() > 5
  return result


@pytest.mark.parametrize(
  ('lookahead', 'network'),
  [
    (0, {'network.frame_stack': 3}),
    (2, {'network.dueling': False, 'network.head_hidden_size': 0}),
    (2, {'network.lstm_size': 0, 'network.use_previous_action': False}),
  ],
)
def test_loss_is_what_stepping_by_hand_gives(lookahead, network):
  """Recomputes burn-in, both cores, TD errors and priorities in NumPy."""
  agent = _Agent(lookahead=lookahead, **network)
  assert agent.agent.overlap == _BURN_IN + lookahead + 1
  params, target_params = agent.params(), agent.params(seed=1)
  batch = agent.batch(_BURN_IN + _LENGTH + lookahead)
  value, output = jax.jit(agent.loss)(params, target_params, batch, None)
  q, target_q = (
    _unroll(agent, p, batch)[0][_BURN_IN:] for p in (params, target_params)
  )
  steps = _after_burn_in(batch.unroll.steps)
  errors = r2d2_reference.td_errors(agent.config, q, target_q, steps, _LENGTH)
  np.testing.assert_allclose(
    value,
    r2d2_reference.loss(agent.config, errors, batch.weight, _LENGTH),
    rtol=1e-5,
  )
  expected = r2d2_reference.priorities(agent.config, errors)
  np.testing.assert_allclose(output.priorities, expected, rtol=1e-5, atol=1e-5)


def test_no_gradient_through_burn_in():
  agent = _Agent()
  params, batch = agent.params(), agent.batch()
  gradient = agent.gradient(params, batch)
  _, core = _unroll(agent, params, batch, until=_BURN_IN)
  unroll = types.Unroll(
    _after_burn_in(batch.unroll.steps), core, batch.unroll.env_id
  )
  expected = _Agent(burn_in=0).gradient(
    params, types.Batch(unroll, batch.weight)
  )
  chex.assert_trees_all_close(gradient, expected, rtol=1e-4, atol=1e-6)
  # Training through the burn-in would give another gradient.
  longer = _Agent(burn_in=0, unroll_length=_BURN_IN + _LENGTH)
  other, same = (
    g['network']['core']['recurrent']
    for g in (longer.gradient(params, batch), gradient)
  )
  assert not np.allclose(other, same, rtol=1e-2)


def test_burn_in_reaches_only_the_episode_that_goes_on():
  agent = _Agent()
  batch = agent.batch()
  steps = batch.unroll.steps
  observation = steps.observation.copy()
  observation[:_BURN_IN] += 1.0
  other = batch._replace(
    unroll=batch.unroll._replace(steps=steps._replace(observation=observation))
  )
  before, after = agent.priorities(batch), agent.priorities(other)
  # Environments whose episode starts at the first trained step.
  fresh = steps.step_type[_BURN_IN] == types.StepType.FIRST
  assert fresh.sum() >= 2
  np.testing.assert_array_equal(before[fresh], after[fresh])
  goes_on = _goes_on_past_burn_in(steps)
  assert (before[goes_on] != after[goes_on]).all()


def test_zero_state_forgets_memory_and_keeps_frames():
  stored = _Agent(**{'network.frame_stack': 2})
  zero = _Agent(**{'network.frame_stack': 2, 'loss.initial_state': 'zero'})
  batch = stored.batch()
  core = batch.unroll.initial_core
  assert core.frames
  without = core._replace(lstm=jax.tree.map(np.zeros_like, core.lstm))
  forgotten = batch._replace(unroll=batch.unroll._replace(initial_core=without))
  priorities = zero.priorities(batch)
  np.testing.assert_array_equal(priorities, stored.priorities(forgotten))
  goes_on = _goes_on_past_burn_in(batch.unroll.steps)
  assert (priorities != stored.priorities(batch))[goes_on].all()


def _acting(schedule):
  return _Agent(**{
    'exploration.schedule': schedule,
    'exploration.decay_frames': 400,
    'total_env_frames': 1000,
  })


def _state_at(agent, progress):
  """Returns the state after an update of a batch of valid transitions."""
  update = jax.vmap(
    agent.agent.update, in_axes=(0, 0, None, None), axis_name=base.AXIS
  )
  state = jax.jit(agent.agent.init)(_KEY)
  args = jax.tree.map(lambda x: jnp.asarray(x)[None], (state, agent.batch()))
  state, _ = jax.jit(update)(*args, _KEY, jnp.float32(progress))
  return jax.tree.map(lambda x: x[0], state)


def test_epsilon_decays_over_frames_and_is_part_of_the_state():
  agent = _acting('linear')
  acting_params = agent.agent.acting_params
  assert acting_params(jax.jit(agent.agent.init)(_KEY)).epsilon == 1.0
  for progress, expected in ((0.1, 0.775), (0.4, 0.1), (0.9, 0.1)):
    state = _state_at(agent, progress)
    np.testing.assert_allclose(acting_params(state).epsilon, expected, 1e-5)


def test_ladder_leaves_the_state_as_it_was():
  # Work directories of before the schedule stay valid.
  agent = _acting('ladder')
  state = _state_at(agent, 0.5)
  assert state.progress == ()
  assert agent.agent.acting_params(state).epsilon == ()


@pytest.mark.parametrize('schedule', ['ladder', 'linear'])
def test_training_environments_explore_as_scheduled(schedule):
  agent, width = _acting(schedule), 4000
  step = types.AgentInput(
    observation=np.ones((width, 2), np.float32),
    reward=np.zeros(width, np.float32),
    previous_action=np.zeros(width, np.int32),
    first=np.ones(width, bool),
  )
  epsilon = jnp.float32(0.9) if schedule == 'linear' else ()
  params = exploration.ActingParams(agent.params(), epsilon)
  env_id = np.arange(width, dtype=np.int32) % 8
  output, _ = jax.jit(agent.act)(
    params, _KEY, step, agent.initial_core(width), env_id
  )
  other = np.asarray(output.action) != np.argmax(output.q_values, -1)
  trained = np.full(6, 0.9)
  if schedule == 'ladder':
    trained = np.asarray(exploration.ladder(0.4, 7.0, 6, np.arange(6)))
  share = [other[env_id == i].mean() for i in range(8)]
  # Two of three random actions are others. Five standard errors.
  expected = np.append(trained, [1e-3, 1e-3]) * 2 / 3
  np.testing.assert_allclose(share, expected, atol=0.11)
