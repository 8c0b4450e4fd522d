"""V-trace targets over sequences with several episodes in them.

`loss` calls this with what the target policy and the behaviour policy say of
an unroll. Transitions are numbered by the step that they leave: transition t
takes action t and leads to step t + 1 with `reward[t + 1]`,
`discount[t + 1]`.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import rlax


class Transitions(NamedTuple):
  """The T transitions between the T + 1 steps of an unroll, all `[T, B]`.

  Attributes:
    valid: bool, False where a step FIRST follows: an episode ended and the
      next one began, and the action between did nothing.
    reward: float32, clipped where the loss clips.
    discount: float32, the environment's times the agent's.
    rho: float32, importance weight pi(a) / mu(a), not clipped.
  """

  valid: jax.Array
  reward: jax.Array
  discount: jax.Array
  rho: jax.Array


class VTraceTargets(NamedTuple):
  """Constants for the gradient, float32 `[T, B]`.

  Attributes:
    value: v_s of equation 1; the baseline itself where not valid.
    advantage: rho_s (r_s + gamma v_{s+1} - V(x_s)) of section 4.2; 0 where
      not valid.
  """

  value: jax.Array
  advantage: jax.Array


def vtrace_targets(
  transitions: Transitions,
  baseline: jax.Array,
  *,
  lambda_: float,
  clip_rho: float,
  clip_c: float,
  clip_pg_rho: float,
) -> VTraceTargets:
  """Computes V-trace targets (arXiv 1802.01561, equation 1 and section 4.2).

  A transition that is not valid gets weight, reward and discount 0. Then its
  target is its own baseline: the transition into a truncated episode's last
  step bootstraps from V(x_LAST), the product of trace coefficients ends there
  and nothing of the next episode passes.

  Args:
    transitions: `[T, B]`.
    baseline: float32 `[T + 1, B]`, V(x).
    lambda_: factor of the trace coefficients, c_i = lambda min(clip_c, rho_i)
      (remark 2). The advantage uses v_{s+1} undiluted, as the paper and SEED
      do (rlax's own advantage mixes it with V by lambda).
    clip_rho: rho-bar, which sets the policy that the fixed point belongs to.
    clip_c: c-bar.
    clip_pg_rho: clip of the policy gradient's weight.
  """
  shape = transitions.reward.shape
  chex.assert_rank(transitions.reward, 2)
  chex.assert_equal_shape(transitions)
  chex.assert_shape(baseline, (shape[0] + 1, shape[1]))
  zeros = jnp.zeros(shape)
  rho, reward, discount = (
    jnp.where(transitions.valid, x, zeros)
    for x in (transitions.rho, transitions.reward, transitions.discount)
  )
  values, next_values = baseline[:-1], baseline[1:]
  # rlax clips its trace at 1 and multiplies by lambda; a lambda for each step
  # turns that into any clip. Exactly lambda_ where clip_c is 1.
  tiny = jnp.finfo(rho.dtype).tiny
  unclipped = jnp.maximum(rho, tiny)
  step_lambda = (
    lambda_ * jnp.minimum(clip_c, unclipped) / jnp.minimum(1.0, unclipped)
  )
  errors = jax.vmap(rlax.vtrace, in_axes=(1,) * 6 + (None,), out_axes=1)(
    values, next_values, reward, discount, rho, step_lambda, clip_rho
  )
  targets = errors + values
  next_targets = jnp.concatenate([targets[1:], baseline[-1:]])
  advantage = jnp.minimum(clip_pg_rho, rho) * (
    reward + discount * next_targets - values
  )
  return jax.lax.stop_gradient(VTraceTargets(targets, advantage))
