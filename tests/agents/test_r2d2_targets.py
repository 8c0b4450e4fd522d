"""Tests value rescaling, n-step returns and TD errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.agents import transitions as transitions_lib
from seedrl_jax.agents.r2d2 import targets
from tests.agents import r2d2_reference, r2d2_sequences

_LENGTH = 4


def _sequence(length, seed=0):
  rng = np.random.default_rng(seed)
  steps = r2d2_sequences.steps_with_ends(rng, length)
  q, target_q = (
    (rng.normal(size=steps.agent_output.q_values.shape) * 4).astype(np.float32)
    for _ in range(2)
  )
  return q, target_q, steps


def _td_errors(config, q, target_q, steps, unroll_length=_LENGTH):
  return jax.jit(
    lambda *x: targets.td_errors(config, *x, unroll_length=unroll_length)
  )(q, target_q, steps)


@pytest.mark.parametrize('epsilon', [0.0, 1e-3, 1e-2, -1.0])
def test_rescaling_and_its_inverse(epsilon):
  size = np.concatenate([[0.0], np.logspace(-5, 2, 500)])
  x = np.concatenate([-size, size]).astype(np.float32)
  rescaled = jax.jit(lambda x: targets.rescale(x, epsilon))(x)
  expected = r2d2_reference.h(x.astype(np.float64), epsilon)
  np.testing.assert_allclose(rescaled, expected, rtol=1e-6, atol=1e-6)
  # Computes h in double precision: only h^-1 has float32 rounding.
  unscaled = jax.jit(lambda x: targets.unscale(x, epsilon))(x)
  unscaled = np.asarray(unscaled, np.float64)
  back = r2d2_reference.h(unscaled, epsilon)
  np.testing.assert_allclose(back, x, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(('epsilon', 'double_q'), [(-1.0, False), (1e-3, True)])
@pytest.mark.parametrize(
  ('n', 'full'), [(1, True), (3, False), (3, True), (5, False), (5, True)]
)
def test_td_errors_equal_numpy(n, epsilon, full, double_q):
  """With `full`, the lookahead gives every transition its n rewards."""
  config = r2d2_sequences.config(**{
    'loss.n_steps': n,
    'loss.rescale_epsilon': epsilon,
    'loss.double_q': double_q,
    'loss.discount': 0.9,
    'loss.reward_clip': 2.5,
    'loss.reward_scale': 0.7,
  }).loss
  q, target_q, steps = _sequence(_LENGTH + (n - 1 if full else 0), seed=n)
  result = jax.device_get(_td_errors(config, q, target_q, steps))
  expected = r2d2_reference.td_errors(config, q, target_q, steps, _LENGTH)
  assert sum(map(len, expected)) == np.sum(result.valid) < result.valid.size
  for b, errors in enumerate(expected):
    for t in range(_LENGTH):
      assert result.valid[t, b] == (t in errors)
      np.testing.assert_allclose(
        result.error[t, b], errors.get(t, 0.0), rtol=1e-5, atol=1e-5
      )


_returns = jax.jit(targets.n_step_returns, static_argnums=2)


def test_returns_by_hand():
  # The first continues; at step 2 the second is truncated and the third
  # terminated; both restart at step 3.
  transitions = transitions_lib.Transitions(
    valid=np.array([[1, 1, 1], [1, 1, 1], [1, 0, 0], [1, 1, 1]], bool),
    reward=np.array([[1, 1, 1], [2, 2, 2], [4, 0, 0], [8, 8, 8]], np.float32),
    discount=np.array(
      [[0.5] * 3, [0.5, 0.5, 0.0], [0.5, 0, 0], [0.5] * 3], np.float32
    ),
  )
  value = np.array([[10] * 3, [20] * 3, [40] * 3, [80] * 3], np.float32)
  returns = np.asarray(_returns(transitions, value, 3))
  expected = np.array([
    # r1 + r2/2 + r3/4 + v3/8, cut off at the ends of episodes.
    [1 + 1 + 1 + 5, 1 + 1 + 5, 1 + 1],
    [2 + 2 + 2 + 10, 2 + 10, 2],
    # The remaining rewards and the last value.
    [4 + 4 + 20, 0, 0],
    [8 + 40, 8 + 40, 8 + 40],
  ])
  valid = transitions.valid
  np.testing.assert_allclose(returns[valid], expected[valid])


def test_more_steps_than_the_sequence_has():
  transitions = transitions_lib.Transitions(
    np.ones((2, 1), bool), np.ones((2, 1)), np.ones((2, 1))
  )
  returns = _returns(transitions, np.full((2, 1), 10.0), 5)
  np.testing.assert_allclose(returns, [[12.0], [11.0]])


def test_what_stands_at_pseudo_transitions_is_unseen():
  q, target_q, steps = _sequence(_LENGTH + 2)
  entering = steps.step_type == types.StepType.FIRST
  entering[0] = False
  leaving = np.concatenate([entering[1:], np.zeros_like(entering[:1])])
  acted = steps.agent_output
  poisoned = steps._replace(
    reward=np.where(entering, np.inf, steps.reward).astype(np.float32),
    discount=np.where(entering, 3.0, steps.discount).astype(np.float32),
    agent_output=acted._replace(
      action=np.where(leaving, 2 - acted.action, acted.action)
    ),
  )
  config = r2d2_sequences.config().loss
  for x, y in zip(
    _td_errors(config, q, target_q, steps),
    _td_errors(config, q, target_q, poisoned),
    strict=True,
  ):
    np.testing.assert_array_equal(x, y)


def test_the_next_episode_does_not_change_this_one():
  q, target_q, steps = _sequence(_LENGTH + 2)
  config = r2d2_sequences.config(**{'loss.n_steps': 5}).loss
  before = jax.device_get(_td_errors(config, q, target_q, steps))
  # From an environment's first reset on.
  reset = steps.step_type == types.StepType.FIRST
  reset[0] = False
  later = np.cumsum(reset, axis=0) > 0
  after = _td_errors(
    config,
    np.where(later[..., None], -q, q),
    np.where(later[..., None], -target_q, target_q),
    steps._replace(reward=np.where(later, steps.reward + 1.0, steps.reward)),
  )
  after = jax.device_get(after)
  untouched = ~later[1 : _LENGTH + 1] & ~later[:_LENGTH]
  assert (reset.any(0) & untouched.any(0)).sum() > 5
  np.testing.assert_array_equal(
    before.target[untouched], after.target[untouched]
  )
  touched = before.valid & later[:_LENGTH]
  assert not np.isclose(before.error[touched], after.error[touched]).any()


def test_gradient_reaches_the_chosen_values_only():
  q, target_q, steps = _sequence(_LENGTH + 2)
  config = r2d2_sequences.config().loss

  def total(q, target_q):
    return jnp.sum(_td_errors(config, q, target_q, steps).error)

  gradient, target_gradient = jax.device_get(
    jax.jit(jax.grad(total, argnums=(0, 1)))(q, target_q)
  )
  np.testing.assert_array_equal(target_gradient, 0.0)
  valid = _td_errors(config, q, target_q, steps).valid
  action = steps.agent_output.action[:_LENGTH]
  expected = -np.eye(3)[action] * np.asarray(valid)[..., None]
  np.testing.assert_array_equal(gradient[:_LENGTH], expected)
  # Later transitions only bootstrap.
  np.testing.assert_array_equal(gradient[_LENGTH:], 0.0)
