"""The V-trace loss (arXiv 1802.01561), and the adapting entropy cost."""

import functools
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from seedrl_jax import types
from seedrl_jax.agents import base, sgd
from seedrl_jax.agents import transitions as transitions_lib
from seedrl_jax.networks import distributions, heads, popart

# Bounds of the adapted entropy cost's logarithm, as in SEED RL; beyond, it
# would take long to come back.
_LOG_COST_BOUND = 20.0


def make_loss(config: types.Config, module: heads.ActorCritic) -> sgd.LossFn:
  """Returns the loss of a batch under `module`."""
  distribution = module.distribution
  scale = 1.0
  if config.loss.reduction == 'sum':
    # Over all devices' unrolls, as their gradients are averaged.
    scale = float(config.unroll_length * config.batch_size)

  def loss(
    params: base.Params, _: base.Params, batch: types.Batch, *unused: Any
  ) -> tuple[jax.Array, sgd.LossOutput]:
    unroll = batch.unroll
    inputs = types.agent_input(unroll.steps)
    outputs, _ = module.apply(
      {'params': params['network']}, inputs, unroll.initial_core
    )
    cost = jnp.float32(config.loss.entropy_cost)
    if config.loss.target_entropy is not None:
      speed = config.loss.entropy_cost_adjustment_speed
      cost = jnp.exp(speed * params['entropy_cost'])
    statistics = None
    if module.popart:
      trained = jax.tree.map(lambda x: x[:-1], inputs)
      task = module.network.task(trained)
      statistics = popart.moments(params['network'], task)
    value, output = vtrace_loss(
      config.loss, distribution, outputs, unroll.steps, cost, statistics
    )
    return scale * value, output

  return loss


class PolicyTerms(NamedTuple):
  """Terms of both policies for each transition, float32 `[T, B]`."""

  log_prob: jax.Array  # log pi(a)
  behaviour_log_prob: jax.Array  # log mu(a)
  entropy: jax.Array  # of pi, in nats
  kl: jax.Array  # KL(mu, pi), in nats


class VTraceTargets(NamedTuple):
  """Targets without gradient, float32 `[T, B]`.

  The value is v_s of equation 1, the advantage rho_s (r_s + gamma v_{s+1} -
  V(x_s)) of section 4.2; if not valid, the baseline itself and 0.
  """

  value: jax.Array
  advantage: jax.Array


def vtrace_targets(
  config: types.Config,
  transitions: transitions_lib.Transitions,
  rho: jax.Array,
  baseline: jax.Array,
) -> VTraceTargets:
  """Computes V-trace targets (arXiv 1802.01561, equation 1 and section 4.2).

  An invalid transition has weight 0, so its target is its own baseline. A
  truncated episode's last transition thus bootstraps from V(x_LAST), and
  nothing of the next episode leaks into the trace.

  The trace is c_i = `lambda_` min(`clip_c`, rho_i) (remark 2); the advantage
  uses v_{s+1} as is, like the paper and SEED, unlike rlax.

  Args:
    config: `config.loss`, with the clips.
    transitions: `[T, B]`.
    rho: float32 `[T, B]`, pi(a) / mu(a), not clipped; ignored if not valid.
    baseline: float32 `[T + 1, B]`, V(x).
  """
  length, batch = transitions.reward.shape
  chex.assert_equal_shape([*transitions, rho])
  chex.assert_shape(baseline, (length + 1, batch))
  rho = jnp.where(transitions.valid, rho, 0.0)
  reward, discount = transitions.reward, transitions.discount
  values, next_values = baseline[:-1], baseline[1:]
  trace = config.lambda_ * discount * jnp.minimum(config.clip_c, rho)
  errors = jnp.minimum(config.clip_rho, rho) * (
    reward + discount * next_values - values
  )
  targets = transitions_lib.sums_to_go(errors, trace) + values
  next_targets = jnp.concatenate([targets[1:], baseline[-1:]])
  advantage = jnp.minimum(config.clip_pg_rho, rho) * (
    reward + discount * next_targets - values
  )
  return jax.lax.stop_gradient(VTraceTargets(targets, advantage))


def initial_entropy_cost_param(config: types.Config) -> jax.Array:
  """Returns log(`config.entropy_cost`) / speed, given `config.loss`.

  The entropy cost is exp(speed * parameter), so that the speed scales even
  Adam's steps of its logarithm.

  Raises:
    ValueError: if the initial cost is not positive.
  """
  if config.entropy_cost <= 0:
    raise ValueError(
      f'--config.loss.entropy_cost={config.entropy_cost}: adapting it to '
      '--config.loss.target_entropy needs a positive one to start from.'
    )
  return jnp.log(config.entropy_cost) / config.entropy_cost_adjustment_speed


def project(config: types.Config, params: base.Params) -> base.Params:
  """Clips an adapted entropy cost to [e^-20, e^20] after an update."""
  if config.target_entropy is None:
    return params
  bound = _LOG_COST_BOUND / config.entropy_cost_adjustment_speed
  param = jnp.clip(params['entropy_cost'], -bound, bound)
  return {**params, 'entropy_cost': param}


def vtrace_loss(
  config: types.Config,
  distribution: distributions.Distribution,
  outputs: heads.ActorCriticOutput,
  steps: types.Steps,
  cost: jax.Array,
  statistics: popart.Moments | None = None,
) -> tuple[jax.Array, sgd.LossOutput]:
  """Computes policy gradient, baseline, entropy and KL losses (section 4.2).

  Linear in equal pieces of the batch. `outputs` and `steps` are `[T + 1, B]`;
  `agent_output` has `action` and `policy_logits`; `cost` is that of entropy.
  PopArt's `statistics`, if it is used, scale advantages and errors of values.

  Returns:
    the sum over valid transitions divided by T x B, and auxiliary outputs,
    which have moments for `popart.absorb` if `statistics` are given.
  """
  chex.assert_equal_shape([outputs.baseline, steps.reward])
  chex.assert_equal_shape([outputs.policy, steps.agent_output.policy_logits])
  chex.assert_type([*outputs, steps.reward], jnp.float32)
  logits, acted = jax.tree.map(
    lambda x: x[:-1], (outputs.policy, steps.agent_output)
  )
  terms = PolicyTerms(
    log_prob=distribution.log_prob(logits, acted.action),
    behaviour_log_prob=distribution.log_prob(acted.policy_logits, acted.action),
    entropy=distribution.entropy(logits),
    kl=distribution.kl(acted.policy_logits, logits),
  )
  transitions = transitions_lib.from_config(config, steps)
  rho = jnp.exp(
    jax.lax.stop_gradient(terms.log_prob) - terms.behaviour_log_prob
  )
  targets = vtrace_targets(
    config, transitions, rho, jax.lax.stop_gradient(outputs.baseline)
  )
  valid, values = transitions.valid, outputs.baseline[:-1]
  advantage, error, returns = targets.advantage, targets.value - values, None
  if statistics is not None:
    advantage /= statistics.deviation
    error /= statistics.deviation
    returns = popart.batch_moments(statistics, targets.value, valid)
  loss, metrics = _weighted_sum(config, terms, valid, advantage, error, cost)
  metrics |= _diagnostics(config, terms, valid, rho, targets, values)
  # Of all actions, legal or not; none of those that are not discrete.
  if max_entropy := distribution.max_entropy:
    metrics['health/entropy_share'] = metrics['entropy'] / max_entropy
  valid_share = 1.0 - metrics['masked_share']
  return loss, sgd.LossOutput(metrics, None, valid_share, returns)


def _weighted_sum(
  config: types.Config,
  terms: PolicyTerms,
  valid: jax.Array,
  advantage: jax.Array,
  error: jax.Array,
  cost: jax.Array,
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Returns the sum of the losses, and metrics; `error` is of the values."""

  def mean(x: jax.Array) -> jax.Array:
    # Divides by all transitions; see `sgd.LossOutput.valid_share`.
    return jnp.sum(jnp.where(valid, x, 0.0)) / valid.size

  policy_loss = -mean(advantage * terms.log_prob)
  baseline_loss = 0.5 * mean(jnp.square(error))
  loss = (
    policy_loss
    + config.baseline_cost * baseline_loss
    - jax.lax.stop_gradient(cost) * mean(terms.entropy)
    + config.kl_cost * mean(terms.kl)
  )
  if config.target_entropy is not None:
    # Raises the cost if the entropy is below its target; meaningless as a
    # metric.
    excess = mean(terms.entropy - config.target_entropy)
    loss += cost * jax.lax.stop_gradient(excess)
  return loss, {
    'policy': policy_loss,
    'baseline': baseline_loss,
    'entropy_cost': cost,
  }


def _diagnostics(
  config: types.Config,
  terms: PolicyTerms,
  valid: jax.Array,
  rho: jax.Array,
  targets: VTraceTargets,
  values: jax.Array,
) -> dict[str, jax.Array]:
  mean = functools.partial(transitions_lib.mean_of_valid, valid=valid)
  return {
    'entropy': mean(terms.entropy),
    'kl': mean(terms.kl),
    'rho': mean(rho),
    'rho_clipped_share': mean(rho > config.clip_rho),
    'value_mean': mean(values),
    'value_target': mean(targets.value),
    'explained_variance': transitions_lib.explained_variance(
      targets.value, targets.value - values, valid
    ),
    'masked_share': 1.0 - jnp.mean(valid),
  }
