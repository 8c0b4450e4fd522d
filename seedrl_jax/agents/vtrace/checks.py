"""What the keys of the configuration that are V-trace's own may be."""

from seedrl_jax.runtime.settings import Allowed, number, one_of, optional

RANGES: dict[str, Allowed] = {
  'loss.discount': number(0, 1),
  'loss.lambda_': number(0, 1),
  'loss.clip_rho': number(0),
  'loss.clip_c': number(0),
  'loss.clip_pg_rho': number(0),
  'loss.entropy_cost': number(0),
  'loss.target_entropy': optional(number(0)),
  # The cost's logarithm is divided by it.
  'loss.entropy_cost_adjustment_speed': number(1e-6),
  'loss.baseline_cost': number(0),
  'loss.kl_cost': number(0),
  'loss.reward_clip': number(0),
  'loss.reward_scale': number(),
  'loss.reduction': one_of('mean', 'sum'),
}
