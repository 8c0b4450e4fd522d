"""Tests agents with masks: as if illegal actions did not exist."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.agents import base, exploration, transitions
from seedrl_jax.agents.ppo import agent as ppo
from seedrl_jax.agents.ppo import loss as ppo_loss
from seedrl_jax.agents.pqn import agent as pqn
from seedrl_jax.agents.pqn import loss as pqn_loss
from seedrl_jax.agents.r2d2 import agent as r2d2
from seedrl_jax.agents.r2d2 import loss as r2d2_loss
from seedrl_jax.agents.vtrace import agent as vtrace
from seedrl_jax.agents.vtrace import loss as vtrace_loss
from seedrl_jax.configs import base as base_config
from seedrl_jax.configs import (
  dqn_cartpole,
  dyna_q_cartpole,
  ppo_cartpole,
  pqn_cartpole,
  r2d2_base,
)
from seedrl_jax.networks import action_masks, distributions, heads
from tests.agents import (
  ppo_reference,
  pqn_reference,
  r2d2_reference,
  sequences,
  vtrace_reference,
)
from tests.networks import parameters

_LENGTH, _BATCH, _ACTIONS, _LEGAL = 7, 6, 5, 3
_SHAPE = (_LENGTH + 1, _BATCH)
_KEY = jax.random.key(0)
_COST = np.float32(0.02)


def _loss_config(make, **changes):
  config = make().loss
  config.update(changes)
  return config


# Each maps values `[T + 1, B, n]`, their others (of behaviour, or of a target
# network), baselines and steps with actions to (loss, metrics), or to a loss
# in float64 if `reference`.


def _vtrace(values, others, baseline, steps, reference=False):
  config = _loss_config(base_config.get_config, kl_cost=0.3)
  output = vtrace.AgentOutput(steps.agent_output.action, others)
  steps = steps._replace(agent_output=output)
  if reference:
    args = config, values, baseline, steps, _COST
    return vtrace_reference.vtrace(*args).loss
  distribution = distributions.Categorical(values.shape[-1:])
  outputs = heads.ActorCriticOutput(values, baseline)
  loss, output = vtrace_loss.vtrace_loss(
    config, distribution, outputs, steps, _COST
  )
  return loss, output.metrics


def _ppo(values, others, baseline, steps, reference=False):
  config = _loss_config(
    ppo_cartpole.get_config, normalize_advantages='no', entropy_cost=0.1
  )
  action = steps.agent_output.action
  distribution = distributions.Categorical(values.shape[-1:])
  log_prob = distribution.log_prob(others, action)
  if reference:
    log_prob = np.float64(log_prob)
  steps = steps._replace(agent_output=ppo.AgentOutput(action, log_prob))
  if reference:
    args = values[:-1], np.float64(baseline[:-1]), np.float64(baseline), steps
    return ppo_reference.ppo(config, ppo_reference.categorical, *args).loss
  trajectory = transitions.from_steps(steps, discount=config.discount)
  advantage = ppo_loss.advantages(trajectory, baseline, config.lambda_)
  samples = ppo_loss.Samples(
    weight=trajectory.valid / jnp.mean(trajectory.valid),
    action=action[:-1],
    log_prob=log_prob[:-1],
    value=baseline[:-1],
    target=advantage + baseline[:-1],
    advantage=advantage,
  )
  outputs = heads.ActorCriticOutput(values[:-1], baseline[:-1])
  return ppo_loss.ppo_loss(config, distribution, outputs, samples)


def _r2d2(values, others, baseline, steps, reference=False, make=r2d2_base):
  del baseline
  config = make.get_config()
  weight = np.linspace(0.5, 1.0, _BATCH).astype(np.float32)
  config.unroll_length = length = _LENGTH - 1
  if reference:
    args = config.loss, values, others, steps, length
    errors = r2d2_reference.td_errors(*args)
    return r2d2_reference.loss(config.loss, errors, weight, length)
  loss, output = r2d2_loss.q_loss(config, values, others, steps, weight)
  return loss, {**output.metrics, 'priority': output.priorities.max()}


def _pqn(values, others, baseline, steps, reference=False):
  del others, baseline
  config = _loss_config(pqn_cartpole.get_config)
  if reference:
    target, _ = pqn_reference.targets(config, values, steps)
    return pqn_reference.loss(config, values, target, steps)
  target = pqn_loss.targets(config, values, steps)
  sample = pqn.Sample(
    steps.agent_output.action, jnp.pad(target, ((0, 1), (0, 0)))
  )
  loss, output = pqn_loss.q_loss(values, steps._replace(agent_output=sample))
  return loss, output.metrics


_LOSSES = {
  'vtrace': _vtrace,
  'ppo': _ppo,
  'r2d2': _r2d2,
  'dqn': functools.partial(_r2d2, make=dqn_cartpole),
  'pqn': _pqn,
}


def _problem(seed=0):
  """Returns values, others, baseline, steps, and which actions are legal.

  These are int `[T + 1, B, L]`; the actions of the steps count among them.
  """
  rng = np.random.default_rng(seed)
  steps = sequences.random_steps(rng, _LENGTH, _BATCH, _LEGAL)
  values, others = rng.normal(size=(2, *_SHAPE, _ACTIONS)).astype(np.float32)
  baseline = rng.normal(size=_SHAPE).astype(np.float32)
  order = np.argsort(rng.random((*_SHAPE, _ACTIONS)), axis=-1)
  return values, others, baseline, steps, np.sort(order[..., :_LEGAL], -1)


def _with_action(steps, action):
  output = r2d2.AgentOutput(action.astype(np.int32), np.zeros(_SHAPE, 'f'))
  return steps._replace(agent_output=output)


@pytest.mark.parametrize('name', _LOSSES)
def test_a_loss_is_that_without_illegal_actions(name):
  function = _LOSSES[name]
  values, others, baseline, steps, index = _problem()
  action = steps.agent_output.action
  chosen = np.take_along_axis(index, action[..., None], -1)[..., 0]
  legal = np.zeros(values.shape, bool)
  np.put_along_axis(legal, index, True, -1)
  whole, less = _with_action(steps, chosen), _with_action(steps, action)

  def loss(values, others, steps, legal=None):
    values, others = (action_masks.apply(x, legal) for x in (values, others))
    return function(values, others, baseline, steps)

  gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))
  (value, metrics), slope = gradient(values, others, whole, legal)
  # Nothing depends on them.
  wild = np.where(legal, values, 1e6), np.where(legal, others, -1e6)
  again = gradient(*wild, whole, legal)
  chex.assert_trees_all_equal(again, ((value, metrics), slope))
  assert (np.asarray(slope)[~legal] == 0).all()

  few, few_others = (np.take_along_axis(x, index, -1) for x in (values, others))
  (few_value, few_metrics), few_slope = gradient(few, few_others, less)
  expected = function(few, few_others, baseline, less, reference=True)
  np.testing.assert_allclose(value, expected, rtol=2e-5)
  np.testing.assert_allclose(value, few_value, rtol=1e-5)
  np.testing.assert_allclose(
    np.take_along_axis(np.asarray(slope), index, -1), few_slope, atol=1e-6
  )
  # Only the maximum entropy is that of all actions.
  share = 'health/entropy_share'
  if share in metrics:
    scale = np.log(_LEGAL) / np.log(_ACTIONS)
    few_metrics = {**few_metrics, share: few_metrics[share] * scale}
  chex.assert_trees_all_close(metrics, few_metrics, rtol=1e-4, atol=1e-6)


def test_gradients_are_finite_differences():
  values, others, baseline, steps, index = _problem(1)
  action = steps.agent_output.action
  taken = np.take_along_axis(index, action[..., None], -1)[..., 0]
  legal = np.zeros(values.shape, bool)
  np.put_along_axis(legal, index, True, -1)

  def loss(values):
    masked = (action_masks.apply(x, legal) for x in (values, others))
    return _ppo(*masked, baseline, _with_action(steps, taken))[0]

  slope = np.asarray(jax.jit(jax.grad(loss))(values))
  few, few_others = (np.take_along_axis(x, index, -1) for x in (values, others))

  def reference(changed):
    args = few_others, baseline, _with_action(steps, action)
    return _ppo(changed, *args, reference=True)

  few, step = np.float64(few), 1e-6
  for place in np.ndindex(2, _BATCH, _LEGAL):
    change = np.zeros_like(few)
    change[place] = step
    difference = (reference(few + change) - reference(few - change)) / 2 / step
    full = (*place[:2], index[place])
    np.testing.assert_allclose(slope[full], difference, atol=1e-6)


def test_epsilon_greedy_draws_legal_actions_evenly():
  size = 20_000
  legal = np.tile([[1, 0, 1, 1], [0, 0, 0, 1]], (size // 2, 1)) > 0
  values = np.tile(np.arange(4.0, dtype='f'), (size, 1))
  masked = action_masks.apply(values, legal)
  draw = functools.partial(exploration.epsilon_greedy, _KEY)
  action = np.asarray(draw(masked, np.ones(size)))
  assert (action[1::2] == 3).all()
  share = np.bincount(action[::2], minlength=4) / (size / 2)
  np.testing.assert_allclose(share, [1 / 3, 0, 1 / 3, 1 / 3], atol=0.025)
  assert (draw(masked, np.zeros(size)) == 3).all()
  # Without a mask as ever.
  _, key = jax.random.split(_KEY)
  chex.assert_trees_all_equal(
    draw(values, np.ones(size)), jax.random.randint(key, (size,), 0, 4)
  )


_MAKE = {
  'vtrace': base_config,
  'ppo': ppo_cartpole,
  'pqn': pqn_cartpole,
  'r2d2': r2d2_base,
  'dyna_q': dyna_q_cartpole,
}


def _env_spec(action, shape):
  observation = {
    'action_mask': types.ArraySpec(shape, np.dtype(np.int8)),
    'x': types.ArraySpec((2,), np.dtype(np.float32)),
  }
  stream = types.StreamSpec(
    observation, action, 1, 'toy', action_mask='action_mask'
  )
  return types.EnvSpec(stream, 2, 1)


_SEVERAL = types.ActionSpec((2,), np.dtype(np.int32), (0, 0), (3, 3))
_BOX = types.ActionSpec((1,), np.dtype(np.float32), (-1.0,), (1.0,))
_HYBRID = types.hybrid([types.discrete(4), _BOX, _SEVERAL])


@pytest.mark.parametrize(
  ('name', 'action', 'shape'),
  [
    *((name, types.discrete(4), (4,)) for name in _MAKE),
    *((name, _SEVERAL, (2, 4)) for name in ('vtrace', 'ppo')),
    *((name, _HYBRID, (3, 4)) for name in ('vtrace', 'ppo')),
  ],
)
def test_no_agent_acts_illegally(name, action, shape):
  config = _MAKE[name].get_config()
  config.agent = name
  config.network.hidden_sizes = (4,)
  agent = base.load_agent(config, _env_spec(action, shape))
  state = parameters.draw(agent.init, _KEY)
  rng, size = np.random.default_rng(0), 3000
  mask = rng.integers(0, 2, (size, *shape)).astype(np.int8)
  mask[..., 1] |= ~mask.any(axis=-1)
  # Any action, but a valid one.
  mask[::7] = 0
  step = types.AgentInput(
    observation={
      'action_mask': mask,
      'x': rng.normal(size=(size, 2)).astype(np.float32),
    },
    reward=np.zeros(size, np.float32),
    previous_action=np.zeros((size, *action.shape), action.dtype),
    first=np.zeros(size, bool),
  )
  output, _ = jax.jit(agent.act)(
    agent.acting_params(state),
    _KEY,
    step,
    agent.initial_core(size),
    np.arange(size) % 3,
  )
  chosen = np.asarray(output.action).reshape(size, -1)
  chosen = chosen[:, action.choices].astype(int)
  assert ((chosen >= 0) & (chosen < 4)).all()
  flat = mask.reshape(size, -1, 4)
  legal = np.take_along_axis(flat, chosen[..., None], -1)[..., 0]
  used = np.arange(size) % 7 > 0
  assert (legal[used] != 0).all()
  # All that is legal is tried.
  assert set(chosen[:, -1]) == {0, 1, 2, 3}


def test_masks_leave_continuous_parts_alone():
  parts = [types.discrete(2), _BOX, types.discrete(3)]
  distribution = distributions.make(types.hybrid(parts))
  legal = jnp.array([[True, False, True, False, True]])
  among = distribution.legal_params(legal)
  # Two logits, a mean, three logits and a deviation.
  np.testing.assert_array_equal(among, [[1, 0, 1, 1, 0, 1, 1]])


@pytest.mark.parametrize('name', ['vtrace', 'ppo'])
def test_losses_of_several_choices_sum_those_of_each(name):
  """Joint log-probability, entropy and KL, by a single choice of 12 values."""
  values, others, baseline, steps, _ = _problem(2)
  rng = np.random.default_rng(0)
  sizes = (2, 3)
  action = np.stack([rng.integers(0, n, _SHAPE) for n in sizes], -1)

  def joint(x):
    p, q = (vtrace_reference.log_softmax(y) for y in (x[..., :2], x[..., 2:]))
    return (p[..., :, None] + q[..., None, :]).reshape(*_SHAPE, 6)

  distribution = distributions.Categorical(sizes, (2,))
  code = distribution.one_hot(action)
  log_prob = distribution.log_prob(values, action)
  one = action[..., 0] * 3 + action[..., 1]
  expected = np.take_along_axis(joint(values), one[..., None], -1)[..., 0]
  np.testing.assert_allclose(log_prob, expected, rtol=1e-4, atol=1e-5)
  assert (code.sum(-1) == 2).all()
  if name == 'ppo':
    return
  config = _loss_config(base_config.get_config, kl_cost=0.3)
  outputs = heads.ActorCriticOutput(values, baseline)
  several = steps._replace(agent_output=vtrace.AgentOutput(action, others))
  loss, output = vtrace_loss.vtrace_loss(
    config, distribution, outputs, several, _COST
  )
  single = steps._replace(agent_output=vtrace.AgentOutput(one, joint(others)))
  expected = vtrace_reference.vtrace(
    config, joint(values), baseline, single, _COST
  )
  np.testing.assert_allclose(loss, expected.loss, rtol=2e-5)
  assert output.metrics['entropy'] < distribution.max_entropy
