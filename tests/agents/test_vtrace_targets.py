"""Tests V-trace targets against the paper's sums and n-step returns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.agents import transitions as transitions_lib
from seedrl_jax.agents.vtrace import targets
from tests.agents import sequences, vtrace_reference

_LENGTH, _BATCH = 9, 16


def _sequence(seed, on_policy=False):
  rng = np.random.default_rng(seed)
  steps = sequences.random_steps(rng, _LENGTH, _BATCH)
  shape = (_LENGTH, _BATCH)
  rho = np.ones(shape) if on_policy else np.exp(rng.normal(size=shape))
  transitions = transitions_lib.from_steps(steps, discount=0.97)
  transitions = jax.tree.map(np.asarray, transitions)
  rho = rho.astype(np.float32)
  baseline = rng.normal(size=(_LENGTH + 1, _BATCH)).astype(np.float32)
  return steps, transitions, rho, baseline


def _targets(transitions, rho, baseline, **changes):
  settings = {
    'lambda_': 1.0,
    'clip_rho': 1.0,
    'clip_c': 1.0,
    'clip_pg_rho': 1.0,
    **changes,
  }
  return jax.jit(lambda *x: targets.vtrace_targets(*x, **settings))(
    transitions, rho, baseline
  )


@pytest.mark.parametrize('seed', range(3))
@pytest.mark.parametrize(
  ('lambda_', 'clip_rho', 'clip_c', 'clip_pg_rho'),
  [
    (1.0, 1.0, 1.0, 1.0),
    (0.9, 1.0, 1.0, 1.0),
    (0.95, 2.0, 1.5, 3.0),
    (1.0, 0.7, 0.5, 0.3),
    (0.0, 1.0, 1.0, 1.0),
  ],
)
def test_equals_the_papers_sums(seed, lambda_, clip_rho, clip_c, clip_pg_rho):
  _, transitions, rho, baseline = _sequence(seed)
  output = _targets(
    transitions,
    rho,
    baseline,
    lambda_=lambda_,
    clip_rho=clip_rho,
    clip_c=clip_c,
    clip_pg_rho=clip_pg_rho,
  )
  exact = [np.asarray(x, np.float64) for x in (*transitions[1:], rho)]
  arguments = (transitions.valid, *exact, baseline.astype(np.float64))
  v = vtrace_reference.targets(
    *arguments, lambda_=lambda_, clip_rho=clip_rho, clip_c=clip_c
  )
  advantage = vtrace_reference.advantages(
    *arguments, v, clip_pg_rho=clip_pg_rho
  )
  np.testing.assert_allclose(output.value, v, rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(output.advantage, advantage, rtol=1e-5, atol=1e-5)


def test_on_policy_it_is_the_n_step_return():
  steps, transitions, rho, baseline = _sequence(seed=5, on_policy=True)
  output = _targets(transitions, rho, baseline)
  for b in range(_BATCH):
    for s in np.nonzero(transitions.valid[:, b])[0]:
      total, factor, t = 0.0, 1.0, s
      while t < _LENGTH and steps.step_type[t + 1, b] != types.StepType.FIRST:
        total += factor * transitions.reward[t, b]
        factor *= transitions.discount[t, b]
        t += 1
      total += factor * baseline[t, b]
      np.testing.assert_allclose(output.value[s, b], total, atol=1e-5)
      np.testing.assert_allclose(
        output.advantage[s, b], total - baseline[s, b], atol=1e-5
      )


def test_truncation_bootstraps_and_termination_does_not():
  # Two environments, MID, LAST, FIRST, MID; the first is truncated.
  transitions = transitions_lib.Transitions(
    valid=np.array([[1, 1], [0, 0], [1, 1]], bool),
    reward=np.array([[1, 1], [0, 0], [7, 7]], np.float32),
    discount=np.array([[0.5, 0], [0.0, 0.0], [0.5, 0.5]], np.float32),
  )
  rho = np.ones((3, 2), np.float32)
  baseline = np.array([[3, 3], [8, 8], [20, 20], [30, 30]], np.float32)
  output = _targets(transitions, rho, baseline)
  np.testing.assert_allclose(output.value, [[5, 1], [8, 8], [22, 22]])
  np.testing.assert_allclose(output.advantage, [[2, -2], [0, 0], [2, 2]])


def test_nothing_leaks_over_a_reset():
  _, transitions, rho, baseline = _sequence(seed=2)
  output = _targets(transitions, rho, baseline)
  invalid = ~transitions.valid
  assert invalid[1:-1].any()
  # Values at invalid transitions are ignored, even infinities.
  poisoned = transitions._replace(
    reward=np.where(invalid, 1e6, transitions.reward).astype(np.float32),
    discount=np.where(invalid, 5.0, transitions.discount).astype(np.float32),
  )
  infinite = np.where(invalid, np.inf, rho).astype(np.float32)
  others = _targets(poisoned, infinite, baseline)
  for x, y in zip(output, others, strict=True):
    np.testing.assert_array_equal(x, y)
  # Later values do not change earlier targets.
  b = int(np.nonzero(invalid[1:-1].any(0))[0][0])
  cut = 1 + int(np.nonzero(invalid[1:-1, b])[0][-1])
  later = baseline.copy()
  later[cut + 1 :, b] += 10.0
  changed = _targets(transitions, rho, later)
  for x, y in zip(output, changed, strict=True):
    np.testing.assert_array_equal(x[: cut + 1, b], y[: cut + 1, b])
    assert not np.allclose(x[cut + 1 :, b], y[cut + 1 :, b])


def test_targets_are_constants():
  _, transitions, rho, baseline = _sequence(seed=0)
  gradient = jax.grad(
    lambda b: sum(jnp.sum(x) for x in _targets(transitions, rho, b))
  )(jnp.array(baseline))
  np.testing.assert_array_equal(gradient, 0.0)
