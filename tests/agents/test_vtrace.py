"""Tests V-trace: targets and loss against the paper, masks, acting, costs."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from absl.testing import parameterized

from seedrl_jax import types
from seedrl_jax.agents import base, transitions
from seedrl_jax.agents.vtrace import loss as loss_lib
from seedrl_jax.configs import a2c_atari, a2c_cartpole
from seedrl_jax.configs import base as base_config
from seedrl_jax.networks import distributions, heads, popart
from seedrl_jax.networks import network as network_lib
from tests.agents import sequences, vtrace_reference
from tests.networks import parameters

_LENGTH, _BATCH, _ACTIONS = 7, 6, 3
_KEY = jax.random.key(0)
_ENV_SPEC = types.EnvSpec(
  types.StreamSpec(
    observation=types.ArraySpec((2,), np.dtype('float32')),
    action=types.discrete(_ACTIONS),
    action_repeat=1,
    name='toy',
  ),
  num_envs=6,
  num_eval_envs=2,
)
_DISTRIBUTION = distributions.Categorical((_ACTIONS,))


def _loss_config(**changes):
  config = base_config.get_config().loss
  config.update(changes)
  return config


def _sequence(seed=0):
  rng = np.random.default_rng(seed)
  steps = sequences.random_steps(rng, _LENGTH, _BATCH, _ACTIONS)
  shape = (_LENGTH + 1, _BATCH)
  outputs = heads.ActorCriticOutput(
    policy=rng.normal(size=(*shape, _ACTIONS)).astype(np.float32),
    baseline=rng.normal(size=shape).astype(np.float32),
  )
  return outputs, steps


def _gradient(config, outputs, steps):
  """Returns the loss and metrics, and the gradient by `outputs`."""

  def loss(*args):
    value, output = loss_lib.vtrace_loss(config, _DISTRIBUTION, *args)
    assert output.returns is None
    return value, output.metrics

  gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))
  return jax.device_get(gradient(outputs, steps, np.float32(0.02)))


def _targets(config, *args):
  return jax.jit(functools.partial(loss_lib.vtrace_targets, config))(*args)


@pytest.mark.parametrize(
  'changes',
  [
    {},
    {'lambda_': 0.9, 'kl_cost': 0.3, 'discount': 0.8},
    {'clip_rho': 2.0, 'clip_c': 1.5, 'clip_pg_rho': 3.0},
    {'clip_rho': 0.7, 'clip_c': 0.5, 'clip_pg_rho': 0.3, 'lambda_': 0.95},
    {'reward_clip': 1.0, 'reward_scale': 0.1, 'baseline_cost': 2.0},
  ],
)
def test_equals_the_papers_sums(changes):
  config = _loss_config(**changes)
  outputs, steps = _sequence()
  expected = vtrace_reference.vtrace(config, *outputs, steps, 0.02)
  (loss, _), _ = _gradient(config, outputs, steps)
  np.testing.assert_allclose(loss, expected.loss, rtol=1e-5, atol=1e-5)
  trajectory = transitions.from_steps(
    steps,
    discount=config.discount,
    reward_clip=config.reward_clip,
    reward_scale=config.reward_scale,
  )
  targets = _targets(
    config, trajectory, np.float32(expected.rho), outputs.baseline
  )
  chex.assert_trees_all_close(
    tuple(targets), expected[1:3], rtol=1e-5, atol=1e-5
  )


def test_popart_scales_advantages_and_errors():
  config, deviation = _loss_config(kl_cost=0.3), 5.0
  outputs, steps = _sequence()
  statistics = popart.Moments(
    np.float32(3.0), np.float32(deviation**2), np.ones(1)
  )
  gradient = jax.value_and_grad(loss_lib.vtrace_loss, argnums=2, has_aux=True)
  (loss, output), slope = gradient(
    config, _DISTRIBUTION, outputs, steps, np.float32(0.02), statistics
  )
  # The loss of rewards and values in these units.
  scaled = _loss_config(kl_cost=0.3, reward_scale=1 / deviation)
  arrays = outputs.policy, outputs.baseline / deviation, steps, 0.02
  np.testing.assert_allclose(
    loss, vtrace_reference.vtrace(scaled, *arrays).loss, rtol=1e-5
  )
  expected = vtrace_reference.vtrace(config, *outputs, steps, 0.02)
  valid = steps.step_type[1:] != types.StepType.FIRST
  errors = np.where(valid, outputs.baseline[:-1] - expected.value, 0.0)
  np.testing.assert_allclose(
    slope.baseline[:-1],
    config.baseline_cost * errors / deviation**2 / valid.size,
    rtol=1e-4,
    atol=1e-7,
  )
  (actual,) = output.returns.error / output.returns.weight
  np.testing.assert_allclose(
    actual, expected.value[valid].mean() - 3.0, rtol=1e-4
  )


@pytest.mark.parametrize('a2c', [a2c_cartpole, a2c_atari])
def test_on_policy_is_a2c(a2c):
  config = a2c.get_config().loss
  outputs, steps = _sequence()
  steps = steps._replace(
    agent_output=steps.agent_output._replace(policy_logits=outputs.policy)
  )
  scale = config.reward_scale
  valid = steps.step_type[1:] != types.StepType.FIRST
  baseline = outputs.baseline.astype(np.float64)
  returns = vtrace_reference.n_step_returns(
    steps.reward[1:].astype(np.float64) * scale,
    config.discount * steps.discount[1:].astype(np.float64),
    valid,
    baseline,
  )
  advantage = returns - baseline[:-1]
  trajectory = transitions.from_steps(
    steps, discount=config.discount, reward_scale=scale
  )
  targets = _targets(
    config, trajectory, np.ones_like(trajectory.reward), outputs.baseline
  )
  for actual, expected in zip(targets, (returns, advantage), strict=True):
    np.testing.assert_allclose(
      actual[valid], expected[valid], rtol=1e-5, atol=1e-5
    )
  # A2C's loss, of the mean over steps; invalid transitions count as steps.
  log_pi = vtrace_reference.log_softmax(outputs.policy)[:-1]
  action = steps.agent_output.action[:-1, :, None]
  terms = (
    -advantage * np.take_along_axis(log_pi, action, -1)[..., 0]
    + config.baseline_cost * 0.5 * advantage**2
    + 0.02 * np.sum(np.exp(log_pi) * log_pi, -1)
  )
  (loss, _), _ = _gradient(config, outputs, steps)
  np.testing.assert_allclose(
    loss, terms[valid].sum() / terms.size, rtol=1e-5, atol=1e-5
  )


class PureFunctionTest(parameterized.TestCase):
  @chex.all_variants()
  def test_truncation_bootstraps_and_termination_does_not(self):
    # Two environments, MID, LAST, FIRST, MID; the first is truncated.
    trajectory = transitions.Transitions(
      valid=np.array([[1, 1], [0, 0], [1, 1]], bool),
      reward=np.array([[1, 1], [0, 0], [7, 7]], np.float32),
      discount=np.array([[0.5, 0], [0.0, 0.0], [0.5, 0.5]], np.float32),
    )
    baseline = np.array([[3, 3], [8, 8], [20, 20], [30, 30]], np.float32)
    targets = functools.partial(loss_lib.vtrace_targets, _loss_config())
    output = self.variant(targets)(trajectory, np.ones((3, 2), 'f'), baseline)
    chex.assert_shape(list(output), trajectory.reward.shape)
    np.testing.assert_allclose(output.value, [[5, 1], [8, 8], [22, 22]])
    np.testing.assert_allclose(output.advantage, [[2, -2], [0, 0], [2, 2]])


def test_targets_are_constants():
  outputs, steps = _sequence()
  expected = vtrace_reference.vtrace(_loss_config(), *outputs, steps, 0.02)
  _, gradient = _gradient(_loss_config(), outputs, steps)
  # Half the squared distance to a constant.
  error = outputs.baseline[:-1] - expected.value
  np.testing.assert_allclose(
    gradient.baseline[:-1], 0.5 * error / error.size, atol=1e-6
  )


@pytest.mark.parametrize(('target', 'direction'), [(0.1, -1), (1.09, 1)])
def test_entropy_cost_moves_towards_its_target(target, direction):
  # The policies' entropy lies between the two targets.
  config = _loss_config(target_entropy=target)
  outputs, steps = _sequence()
  (_, metrics), adapted = _gradient(config, outputs, steps)
  assert 0.1 < metrics['entropy'] < 1.09
  # The policy's gradient does not change.
  chex.assert_trees_all_equal(
    adapted, _gradient(_loss_config(), outputs, steps)[1]
  )

  def total(param):
    cost = jnp.exp(config.entropy_cost_adjustment_speed * param)
    return loss_lib.vtrace_loss(config, _DISTRIBUTION, outputs, steps, cost)[0]

  param = loss_lib.initial_entropy_cost_param(config)
  np.testing.assert_allclose(np.exp(10.0 * param), 0.01, rtol=1e-5)
  # A descent follows the negative gradient.
  assert np.sign(-jax.jit(jax.grad(total))(param)) == direction


def test_entropy_cost_comes_back_from_its_bound():
  config = _loss_config(target_entropy=0.5)
  speed, optimizer = config.entropy_cost_adjustment_speed, optax.adam(1e-3)

  def update(carry, excess):
    params, state = carry
    gradient = jax.grad(lambda p: jnp.exp(speed * p['entropy_cost']) * excess)(
      params
    )
    updates, state = optimizer.update(gradient, state)
    params = loss_lib.project(config, optax.apply_updates(params, updates))
    return (params, state), speed * params['entropy_cost']

  params = {'entropy_cost': loss_lib.initial_entropy_cost_param(config)}
  carry = (params, optimizer.init(params))
  carry, logs = jax.lax.scan(update, carry, np.full(50_000, 0.5))
  np.testing.assert_allclose(np.min(logs), -20.0, rtol=1e-5)
  _, logs = jax.lax.scan(update, carry, np.full(25_000, -0.5))
  # Without a bound it would take half as many updates as before.
  assert 0 < np.argmax(np.asarray(logs) > np.log(0.01)) < 500
  np.testing.assert_allclose(np.max(logs), 20.0, rtol=1e-5)


def test_entropy_cost_to_adapt_must_be_positive():
  with pytest.raises(ValueError, match=r'loss\.entropy_cost'):
    loss_lib.initial_entropy_cost_param(_loss_config(entropy_cost=0.0))


def test_metrics_count_valid_transitions_only():
  outputs, steps = _sequence()
  pseudo = steps.step_type[1:] == types.StepType.FIRST
  config = _loss_config(clip_rho=1.2)
  (_, metrics), _ = _gradient(config, outputs, steps)
  reference = vtrace_reference.vtrace(config, *outputs, steps, 0.02)
  log_pi = vtrace_reference.log_softmax(outputs.policy[:-1])
  log_mu = vtrace_reference.log_softmax(steps.agent_output.policy_logits[:-1])
  expected = {
    'entropy': -np.sum(np.exp(log_pi) * log_pi, -1),
    'kl': np.sum(np.exp(log_mu) * (log_mu - log_pi), -1),
    'rho': reference.rho,
    'rho_clipped_share': reference.rho > 1.2,
    'value_mean': outputs.baseline[:-1],
    'value_target': reference.value,
  }
  for name, value in expected.items():
    np.testing.assert_allclose(
      metrics[name], value[~pseudo].mean(), rtol=1e-4, err_msg=name
    )
  np.testing.assert_allclose(metrics['masked_share'], pseudo.mean(), rtol=1e-5)
  assert metrics['explained_variance'] < 1.0


def _agent(**changes):
  """Returns the agent, random parameters, and its jitted loss."""
  config = base_config.get_config()
  config.unroll_length, config.batch_size = _LENGTH, _BATCH
  config.network.hidden_sizes = (8,)
  config.network.lstm_size = 4
  config.network.use_previous_action = True
  config.update_from_flattened_dict(changes)
  agent = base.load_agent(config, _ENV_SPEC)
  params = parameters.draw(lambda key: agent.init(key).params, _KEY)
  network = network_lib.make_network(config.network, _ENV_SPEC)
  distribution = distributions.make(_ENV_SPEC.action)
  module = heads.ActorCritic(network, distribution)
  loss = loss_lib.make_loss(config, module)
  return agent, params, lambda params, batch: loss(params, (), batch)


def _batch(agent):
  return sequences.batch_of(_sequence()[1], agent.initial_core(_BATCH))


def test_on_policy_batch_has_weight_one():
  agent, params, loss = _agent()
  batch = _batch(agent)
  steps, core = batch.unroll.steps, batch.unroll.initial_core
  outputs, act = [], jax.jit(agent.act)
  for t in range(_LENGTH + 1):
    step = jax.tree.map(lambda x, t=t: x[t], types.agent_input(steps))
    output, core = act(params['network'], _KEY, step, core, np.arange(_BATCH))
    outputs.append(output)
  acted = jax.tree.map(lambda *x: np.stack(x), *outputs)
  batch = batch._replace(
    unroll=batch.unroll._replace(steps=steps._replace(agent_output=acted))
  )
  _, output = jax.jit(loss)(params, batch)
  np.testing.assert_allclose(output.metrics['rho'], 1.0, atol=1e-5)
  np.testing.assert_allclose(output.metrics['kl'], 0.0, atol=1e-5)


def test_sum_is_the_mean_times_the_steps_of_the_batch():
  agent, params, averaging = _agent()
  _, _, summing = _agent(**{'loss.reduction': 'sum'})
  batch = _batch(agent)
  mean, total = (
    jax.jit(loss)(params, batch)[0] for loss in (averaging, summing)
  )
  np.testing.assert_allclose(total, mean * _LENGTH * _BATCH, rtol=1e-5)


def test_unknown_agent_is_refused():
  with pytest.raises(ValueError, match=r'built in are .*r2d2 and .*vtrace'):
    _agent(agent='none')
