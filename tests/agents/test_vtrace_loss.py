"""Tests the V-trace loss against NumPy: masks, linearity, costs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs import base
from seedrl_jax import types
from seedrl_jax.agents.vtrace import loss, networks
from tests.agents import sequences, vtrace_reference

_LENGTH, _BATCH, _ACTIONS = 7, 6, 3


def _config(**changes):
  config = base.get_config().loss
  config.update(changes)
  return config


def _sequence(seed=0):
  rng = np.random.default_rng(seed)
  steps = sequences.random_steps(rng, _LENGTH, _BATCH, _ACTIONS)
  shape = (_LENGTH + 1, _BATCH)
  outputs = networks.ActorCriticOutput(
    policy_logits=rng.normal(size=(*shape, _ACTIONS)).astype(np.float32),
    baseline=rng.normal(size=shape).astype(np.float32),
  )
  return outputs, steps


def _loss(config, outputs, steps):
  return jax.jit(functools.partial(loss.vtrace_loss, config))(
    outputs, steps, np.float32(0.02)
  )


def _gradient(config, outputs, steps):
  """Returns the loss and metrics, and the gradient by `outputs`."""
  gradient = jax.value_and_grad(lambda o, s: _loss(config, o, s), has_aux=True)
  return jax.device_get(jax.jit(gradient)(outputs, steps))


@pytest.mark.parametrize('seed', range(2))
@pytest.mark.parametrize(
  'changes',
  [
    {},
    {'lambda_': 0.9, 'kl_cost': 0.3, 'discount': 0.8},
    {'clip_rho': 2.0, 'clip_c': 0.8, 'clip_pg_rho': 1.5},
    {'reward_clip': 1.0, 'reward_scale': 0.1, 'baseline_cost': 2.0},
  ],
)
def test_equals_numpy(seed, changes):
  config = _config(**changes)
  outputs, steps = _sequence(seed)
  value, _ = _loss(config, outputs, steps)
  expected = vtrace_reference.loss(config, *outputs, steps, 0.02)
  np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5)


def test_reward_clip():
  outputs, steps = _sequence()
  assert np.abs(steps.reward).max() > 1.0
  clipped = steps._replace(reward=np.clip(steps.reward, -1.0, 1.0))
  expected, _ = _loss(_config(), outputs, clipped)
  value, _ = _loss(_config(reward_clip=1.0), outputs, steps)
  np.testing.assert_allclose(value, expected)
  assert not np.isclose(value, _loss(_config(), outputs, steps)[0])


def _pseudo(steps):
  """Whether a transition is invalid, `[T, B]`."""
  pseudo = steps.step_type[1:] == types.StepType.FIRST
  assert pseudo[1:].any()
  return pseudo


def test_pseudo_transitions_get_no_gradient():
  outputs, steps = _sequence()
  pseudo = _pseudo(steps)
  config = _config(kl_cost=0.5, target_entropy=0.4)
  _, gradient = _gradient(config, outputs, steps)
  np.testing.assert_array_equal(gradient.policy_logits[:-1][pseudo], 0.0)
  np.testing.assert_array_equal(gradient.baseline[:-1][pseudo], 0.0)
  assert (np.abs(gradient.baseline[:-1][~pseudo]) > 1e-6).all()
  # The last step only bootstraps.
  for g in gradient:
    np.testing.assert_array_equal(g[-1], 0.0)


def test_what_stands_at_pseudo_transitions_is_unseen():
  outputs, steps = _sequence()
  pseudo = _pseudo(steps)
  leaving = np.concatenate([pseudo, np.zeros((1, _BATCH), bool)])
  entering = np.concatenate([np.zeros((1, _BATCH), bool), pseudo])
  acted = steps.agent_output
  poisoned = steps._replace(
    reward=np.where(entering, 1e3, steps.reward).astype(np.float32),
    discount=np.where(entering, 3.0, steps.discount).astype(np.float32),
    agent_output=acted._replace(
      action=np.where(leaving, 2 - acted.action, acted.action),
      policy_logits=np.where(
        leaving[..., None], acted.policy_logits * 200.0, acted.policy_logits
      ).astype(np.float32),
    ),
  )
  config = _config(kl_cost=0.5, target_entropy=0.4)
  both = [_gradient(config, outputs, s) for s in (steps, poisoned)]
  for x, y in zip(*map(jax.tree.leaves, both), strict=True):
    np.testing.assert_array_equal(x, y)


def test_mean_over_pieces_is_the_whole():
  outputs, steps = _sequence()
  config = _config(kl_cost=0.5, target_entropy=0.4)
  # The pieces have different numbers of valid transitions.
  pseudo = _pseudo(steps)
  assert pseudo[:, :3].sum() != pseudo[:, 3:].sum()
  (value, _), whole = _gradient(config, outputs, steps)
  pieces = []
  for part in (slice(0, 3), slice(3, 6)):
    piece = jax.tree.map(lambda x, part=part: x[:, part], (outputs, steps))
    (piece_value, _), gradient = _gradient(config, *piece)
    pieces.append(piece_value)
    for x, y in zip(gradient, whole, strict=True):
      np.testing.assert_allclose(x / 2, y[:, part], atol=1e-6)
  np.testing.assert_allclose(np.mean(pieces), value, rtol=1e-5)


@pytest.mark.parametrize(('target', 'direction'), [(0.1, -1), (1.09, 1)])
def test_entropy_cost_moves_towards_its_target(target, direction):
  # The policies' entropy lies between the two targets.
  config = _config(target_entropy=target)
  outputs, steps = _sequence()
  _, metrics = _loss(config, outputs, steps)
  assert 0.1 < metrics['entropy'] < 1.09

  def total(param):
    cost = jnp.exp(config.entropy_cost_adjustment_speed * param)
    return loss.vtrace_loss(config, outputs, steps, cost)[0]

  param = loss.initial_entropy_cost_param(config)
  optimizer = optax.adam(1e-2)
  state = optimizer.init(param)
  costs = []
  gradient = jax.jit(jax.grad(total))
  for _ in range(5):
    costs.append(np.exp(10.0 * param))
    update, state = optimizer.update(gradient(param), state)
    param = optax.apply_updates(param, update)
  np.testing.assert_allclose(costs[0], config.entropy_cost, rtol=1e-5)
  assert (np.sign(np.diff(costs)) == direction).all()


def test_adapted_cost_does_not_reach_the_policy():
  outputs, steps = _sequence()
  gradients = [
    _gradient(config, outputs, steps)[1]
    for config in (_config(), _config(target_entropy=0.5))
  ]
  for x, y in zip(*gradients, strict=True):
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(
  ('log_cost', 'bounded'), [(70.0, 20.0), (-70.0, -20.0), (-4.0, -4.0)]
)
def test_entropy_cost_is_bounded(log_cost, bounded):
  config = _config(target_entropy=0.5, entropy_cost_adjustment_speed=10.0)
  params = {'entropy_cost': jnp.float32(log_cost / 10.0)}
  param = loss.project(config, params)['entropy_cost']
  np.testing.assert_allclose(10.0 * param, bounded, rtol=1e-5)


def test_entropy_cost_to_adapt_must_be_positive():
  with pytest.raises(ValueError, match=r'loss\.entropy_cost'):
    loss.initial_entropy_cost_param(_config(entropy_cost=0.0))


def test_reductions():
  assert loss.reduction_scale(_config(), 20, 32) == 1.0
  assert loss.reduction_scale(_config(reduction='sum'), 20, 32) == 640.0


def test_metrics_count_valid_transitions_only():
  outputs, steps = _sequence()
  pseudo = _pseudo(steps)
  config = _config(clip_rho=1.2)
  _, metrics = _loss(config, outputs, steps)
  log_pi = vtrace_reference.log_softmax(outputs.policy_logits[:-1])
  log_mu = vtrace_reference.log_softmax(steps.agent_output.policy_logits[:-1])
  action = steps.agent_output.action[:-1, :, None]
  rho = np.exp(np.take_along_axis(log_pi - log_mu, action, -1))[..., 0]
  expected = {
    'masked_share': pseudo.mean(),
    'entropy': -np.sum(np.exp(log_pi) * log_pi, -1)[~pseudo].mean(),
    'kl': np.sum(np.exp(log_mu) * (log_mu - log_pi), -1)[~pseudo].mean(),
    'rho': rho[~pseudo].mean(),
    'rho_clipped_share': (rho > 1.2)[~pseudo].mean(),
    'value_mean': outputs.baseline[:-1][~pseudo].mean(),
  }
  for name, value in expected.items():
    np.testing.assert_allclose(metrics[name], value, rtol=1e-4, err_msg=name)
  assert metrics['explained_variance'] < 1.0
