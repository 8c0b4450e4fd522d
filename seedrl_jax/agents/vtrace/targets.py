"""V-trace targets over sequences that may contain several episodes."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import rlax

from seedrl_jax.agents import transitions as transitions_lib


class VTraceTargets(NamedTuple):
  """Targets without gradient, float32 `[T, B]`.

  The value is v_s of equation 1, the advantage rho_s (r_s + gamma v_{s+1} -
  V(x_s)) of section 4.2; if not valid, the baseline itself and 0.
  """

  value: jax.Array
  advantage: jax.Array


def vtrace_targets(
  transitions: transitions_lib.Transitions,
  rho: jax.Array,
  baseline: jax.Array,
  *,
  lambda_: float,
  clip_rho: float,
  clip_c: float,
  clip_pg_rho: float,
) -> VTraceTargets:
  """Computes V-trace targets (arXiv 1802.01561, equation 1 and section 4.2).

  An invalid transition has weight 0, so its target is its own baseline. A
  truncated episode's last transition thus bootstraps from V(x_LAST), and
  nothing of the next episode leaks into the trace.

  Args:
    transitions: `[T, B]`.
    rho: float32 `[T, B]`, pi(a) / mu(a), not clipped; ignored if not valid.
    baseline: float32 `[T + 1, B]`, V(x).
    lambda_: of the trace, c_i = lambda min(clip_c, rho_i) (remark 2); the
      advantage uses v_{s+1} as is, like the paper and SEED, unlike rlax.
    clip_rho: rho-bar, which determines the fixed point's policy.
    clip_c: c-bar.
    clip_pg_rho: clip of the policy gradient's weight.
  """
  shape = transitions.reward.shape
  chex.assert_rank(transitions.reward, 2)
  chex.assert_equal_shape([*transitions, rho])
  chex.assert_shape(baseline, (shape[0] + 1, shape[1]))
  rho = jnp.where(transitions.valid, rho, 0.0)
  reward, discount = transitions.reward, transitions.discount
  values, next_values = baseline[:-1], baseline[1:]
  # rlax clips its trace at 1 and multiplies it by lambda. A lambda for each
  # step allows any clip; it is exactly lambda_ if clip_c is 1.
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
