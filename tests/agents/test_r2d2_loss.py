"""Tests the R2D2 loss against NumPy: values, weights and pieces."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.agents.r2d2 import loss
from tests.agents import r2d2_reference, r2d2_sequences

_LENGTH = 4


def _sequence(seed=0, length=_LENGTH + 2):
  rng = np.random.default_rng(seed)
  steps = r2d2_sequences.steps_with_ends(rng, length)
  shape = steps.agent_output.q_values.shape
  q, target_q = (rng.normal(size=shape).astype(np.float32) for _ in range(2))
  weight = rng.uniform(0.1, 1.0, shape[1]).astype(np.float32)
  return q, target_q, steps, weight


def _gradient(config):
  return jax.jit(jax.value_and_grad(_loss(config), has_aux=True))


def _loss(config):
  return jax.jit(lambda *x: loss.q_loss(config, *x, unroll_length=_LENGTH))


@pytest.mark.parametrize(
  'changes',
  [
    {},
    {'reduction': 'mean', 'priority_eta': 0.5},
    {'huber_delta': 0.7, 'reward_clip': 1.0},
    {'n_steps': 1, 'rescale_epsilon': -1.0, 'double_q': False},
  ],
)
def test_equals_numpy(changes):
  config = r2d2_sequences.config().loss
  config.update(changes)
  q, target_q, steps, weight = _sequence()
  value, output = _loss(config)(q, target_q, steps, weight)
  errors = r2d2_reference.td_errors(config, q, target_q, steps, _LENGTH)
  np.testing.assert_allclose(
    value, r2d2_reference.loss(config, errors, weight, _LENGTH), rtol=1e-5
  )
  np.testing.assert_allclose(
    output.priorities, r2d2_reference.priorities(config, errors), rtol=1e-5
  )
  sizes = np.abs([x for e in errors for x in e.values()])
  np.testing.assert_allclose(
    output.metrics['td_error'], sizes.mean(), rtol=1e-5
  )


def test_masked_transitions_get_exactly_no_gradient():
  q, target_q, steps, weight = _sequence()
  config = r2d2_sequences.config().loss
  _, gradient = _gradient(config)(q, target_q, steps, weight)
  gradient = np.asarray(gradient)
  valid = steps.step_type[1 : _LENGTH + 1] != types.StepType.FIRST
  taken = np.eye(3)[steps.agent_output.action[:_LENGTH]] * valid[..., None]
  np.testing.assert_array_equal(gradient[:_LENGTH][taken == 0], 0.0)
  assert (np.abs(gradient[:_LENGTH][taken == 1]) > 1e-8).all()
  np.testing.assert_array_equal(gradient[_LENGTH:], 0.0)


@pytest.mark.parametrize('reduction', ['sum', 'mean'])
def test_mean_over_pieces_is_the_whole(reduction):
  config = r2d2_sequences.config(**{'loss.reduction': reduction}).loss
  compiled = _gradient(config)
  whole = _sequence()
  size = whole[-1].size // 3
  parts = [slice(i * size, (i + 1) * size) for i in range(3)]
  cut = slice(3 * size)

  def of(part):
    columns = jax.tree.map(lambda x: x[:, part], whole[:-1])
    return (*columns, whole[-1][part])

  (value, output), gradient = compiled(*of(cut))
  pieces = [compiled(*of(part)) for part in parts]
  values = [v for (v, _), _ in pieces]
  assert np.ptp(values) > 1e-3
  np.testing.assert_allclose(np.mean(values), value, rtol=1e-5)
  np.testing.assert_allclose(
    np.concatenate([g for _, g in pieces], axis=1) / 3, gradient, atol=1e-6
  )
  np.testing.assert_allclose(
    np.concatenate([o.priorities for (_, o), _ in pieces]),
    output.priorities,
    rtol=1e-6,
  )


def test_weights_scale_sequences_and_not_priorities():
  q, target_q, steps, weight = _sequence()
  config = r2d2_sequences.config().loss
  compiled = _loss(config)
  value, output = compiled(q, target_q, steps, weight)
  _, even = compiled(q, target_q, steps, np.ones_like(weight))
  np.testing.assert_array_equal(output.priorities, even.priorities)
  # Each sequence alone.
  values = [compiled(q, target_q, steps, only)[0] for only in np.diag(weight)]
  np.testing.assert_allclose(np.sum(values), value, rtol=1e-5)
  np.testing.assert_allclose(
    output.metrics['replay/importance_weight_mean'], weight.mean(), rtol=1e-6
  )


def test_metrics_count_valid_transitions_only():
  q, target_q, steps, weight = _sequence()
  config = r2d2_sequences.config().loss
  _, output = _loss(config)(q, target_q, steps, weight)
  errors = r2d2_reference.td_errors(config, q, target_q, steps, _LENGTH)
  valid = [(t, b) for b, e in enumerate(errors) for t in e]
  action = steps.agent_output.action
  targets = [
    r2d2_reference.target(config, q, target_q, steps, t, b) for t, b in valid
  ]
  expected = {
    'masked_share': 1.0 - len(valid) / (_LENGTH * weight.size),
    'q_mean': np.mean([q[t, b, action[t, b]] for t, b in valid]),
    'q_max': np.mean([q[t, b].max() for t, b in valid]),
    'q_target': np.mean(targets),
    'replay/priority_mean': np.mean(r2d2_reference.priorities(config, errors)),
  }
  for name, value in expected.items():
    np.testing.assert_allclose(
      output.metrics[name], value, rtol=1e-4, atol=1e-6, err_msg=name
    )
  for value in output.metrics.values():
    assert jnp.shape(value) == ()
