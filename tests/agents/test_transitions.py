"""Tests masks, rewards, discounts and action values of transitions."""

import jax
import numpy as np

from seedrl_jax import types
from seedrl_jax.agents import transitions

_FIRST, _MID, _LAST = types.StepType


def _from_steps(**kwargs):
  column = np.array([_FIRST, _MID, _LAST, _FIRST, _MID], np.uint8)[:, None]
  zeros = np.zeros(column.shape, np.int32)
  steps = types.Steps(
    observation=(),
    reward=np.array([[0.0], [3.0], [-2.0], [9.0], [0.5]], np.float32),
    # At step 1, a lost life in an episode that goes on.
    discount=np.array([[1.0], [0.0], [1.0], [1.0], [1.0]], np.float32),
    step_type=column,
    previous_action=zeros,
    agent_output=(),
    parameter_version=zeros,
  )
  compiled = jax.jit(lambda s: transitions.from_steps(s, **kwargs))
  return jax.tree.map(lambda x: np.asarray(x)[:, 0], compiled(steps))


def test_a_transition_leads_to_the_step_after_it_and_never_to_first():
  result = _from_steps(discount=0.5)
  np.testing.assert_array_equal(result.valid, [1, 1, 0, 1])
  np.testing.assert_array_equal(result.reward, [3.0, -2.0, 0.0, 0.5])
  np.testing.assert_array_equal(result.discount, [0.0, 0.5, 0.0, 0.5])


def test_rewards_are_clipped_and_then_scaled():
  result = _from_steps(discount=0.5, reward_clip=1.0, reward_scale=10.0)
  np.testing.assert_array_equal(result.reward, [10.0, -10.0, 0.0, 5.0])


def test_value_of_an_action_and_its_gradient():
  values = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], np.float32)
  action = np.array([2, 0])
  of_action = jax.jit(transitions.of_action)
  np.testing.assert_array_equal(of_action(values, action), [3, 4])
  gradient = jax.jit(jax.grad(lambda v: of_action(v, action).sum()))(values)
  np.testing.assert_array_equal(gradient, [[0, 0, 1], [1, 0, 0]])


def test_mean_is_over_what_is_valid():
  x = np.array([[1.0, np.nan], [3.0, 8.0]], np.float32)
  valid = np.array([[True, False], [True, True]])
  mean = jax.jit(transitions.mean_of_valid)
  assert mean(x, valid) == 4.0
  assert mean(x, np.zeros_like(valid)) == 0.0
