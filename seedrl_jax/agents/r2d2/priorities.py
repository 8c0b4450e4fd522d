"""Priorities of sequences from their temporal-difference errors.

`loss` calls `mix` for the sequences that it trained on, the agent's seam calls
`initial` for new ones: both the same function of different values.
"""

from typing import Any

import chex
import jax
import jax.numpy as jnp

from seedrl_jax import types
from seedrl_jax.agents.r2d2 import targets


def mix(errors: targets.TDErrors, eta: float) -> jax.Array:
  """Returns eta max |TD| + (1 - eta) mean |TD| over valid transitions.

  R2D2 (Kapturowski et al. 2019), section 2.3.

  Args:
    errors: `[U, B]`.
    eta: share of the maximum, 0 to 1.

  Returns:
    float32 `[B]`. 0 where no transition is valid: such a sequence teaches
    nothing, and a table draws what has priority 0 only where all has.
  """
  chex.assert_rank(errors.error, 2)
  # Errors of transitions that are not valid are 0.
  size = jnp.abs(errors.error)
  count = jnp.maximum(jnp.sum(errors.valid, axis=0), 1)
  mixed = eta * jnp.max(size, axis=0) + (1.0 - eta) * jnp.sum(size, 0) / count
  return jax.lax.stop_gradient(mixed)


def initial(
  config: Any, burn_in: int, unroll_length: int, steps: types.Steps
) -> jax.Array:
  """Returns the priorities of new sequences, float32 `[W]`.

  The values that acting recorded stand for both networks, so that no network
  runs (Ape-X, Horgan et al. 2018, section 3).

  Args:
    config: `config.loss`.
    burn_in: steps before the first trained transition.
    unroll_length: U, trained transitions.
    steps: `[T + 1, W]`, with an `agent_output` of `action` and `q_values`; the
      observation is not read.
  """
  steps = jax.tree.map(lambda x: x[burn_in:], steps)
  q_values = steps.agent_output.q_values
  errors = targets.td_errors(config, q_values, q_values, steps, unroll_length)
  return mix(errors, config.priority_eta)
