"""Tests priorities by hand, and initial priorities against NumPy."""

import jax
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.agents.r2d2 import loss, targets
from tests.agents import r2d2_reference, r2d2_sequences


def test_mix_by_hand():
  valid = np.array([[1, 1, 0], [1, 0, 0]], bool)
  error = np.array([[-4.0, -3.0, 0.0], [2.0, 0.0, 0.0]], np.float32)
  errors = targets.TDErrors(valid, error, error)
  mix = jax.jit(loss.mixed_priorities)
  mixed = mix(errors, 0.9)
  # The mean is over valid transitions; without any the priority is 0.
  np.testing.assert_allclose(mixed, [0.9 * 4 + 0.1 * 3, 3.0, 0.0], rtol=1e-6)
  np.testing.assert_allclose(mix(errors, 1.0), [4.0, 3.0, 0.0])
  np.testing.assert_allclose(mix(errors, 0.0), [3.0, 3.0, 0.0])


def _initial(config, burn_in, length, steps):
  return jax.jit(lambda s: loss.initial_priorities(config, burn_in, length, s))(
    steps
  )


@pytest.mark.parametrize('lookahead', [0, 2])
@pytest.mark.parametrize('burn_in', [0, 3])
def test_initial_ones_take_behaviour_values_for_both_networks(
  burn_in, lookahead
):
  config = r2d2_sequences.config().loss
  length = 4
  steps = r2d2_sequences.steps_with_ends(
    np.random.default_rng(burn_in), burn_in + length + lookahead
  )
  # The observation is not needed.
  steps = steps._replace(observation=())
  result = _initial(config, burn_in, length, steps)
  trained = jax.tree.map(lambda x: x[burn_in:], steps)
  q = trained.agent_output.q_values
  errors = r2d2_reference.td_errors(config, q, q, trained, length)
  expected = r2d2_reference.priorities(config, errors)
  np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_a_lone_pseudo_transition_has_priority_zero():
  steps = r2d2_sequences.random_steps(np.random.default_rng(0), 1, 2)
  steps.step_type[:] = [[types.StepType.LAST], [types.StepType.FIRST]]
  config = r2d2_sequences.config().loss
  result = _initial(config, 0, 1, steps)
  np.testing.assert_array_equal(result, 0.0)
