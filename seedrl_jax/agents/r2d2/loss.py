"""The Q-learning loss on sequences, and their priorities."""

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import rlax

from seedrl_jax import types
from seedrl_jax.agents import base, exploration, sgd
from seedrl_jax.agents import transitions as transitions_lib
from seedrl_jax.networks import heads


def make_loss(config: types.Config, module: heads.QNetwork) -> sgd.LossFn:
  """Returns the loss of a batch under `module`."""
  burn_in = config.burn_in
  num_steps = burn_in + config.unroll_length + config.lookahead + 1

  def q_values_after_burn_in(
    params: base.Params, inputs: types.AgentInput, core: base.Core
  ) -> jax.Array:
    if burn_in:
      past = jax.tree.map(lambda x: x[:burn_in], inputs)
      inputs = jax.tree.map(lambda x: x[burn_in:], inputs)
      # Without gradient. XLA drops the unused values.
      variables = {'params': jax.lax.stop_gradient(params)}
      _, core = module.apply(variables, past, core)
    return module.apply({'params': params}, inputs, core)[0]

  def loss(
    params: base.Params,
    target_params: base.Params,
    batch: types.Batch,
    *unused: Any,
  ) -> tuple[jax.Array, sgd.LossOutput]:
    steps, core = batch.unroll.steps, batch.unroll.initial_core
    chex.assert_axis_dimension(steps.reward, 0, num_steps)
    if config.loss.initial_state == 'zero':
      # Earlier frames stay.
      core = core._replace(lstm=jax.tree.map(jnp.zeros_like, core.lstm))
    inputs = types.agent_input(steps)
    return q_loss(
      config,
      q_values_after_burn_in(params, inputs, core),
      q_values_after_burn_in(target_params, inputs, core),
      jax.tree.map(lambda x: x[burn_in:], steps),
      batch.weight,
    )

  return loss


class TDErrors(NamedTuple):
  """Temporal-difference errors of the U trained transitions, all `[U, B]`."""

  valid: jax.Array  # bool
  error: jax.Array  # float32, target - Q(x_t, a_t), rescaled; 0 if not valid
  target: jax.Array  # float32, rescaled, without gradient


def rescale(x: jax.Array, epsilon: float) -> jax.Array:
  """Returns h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x; x if epsilon < 0.

  R2D2's value rescaling (Kapturowski et al. 2019, section 2.3; Pohlen et al.
  2018, arXiv 1805.11593, proposition A.2).
  """
  return x if epsilon < 0 else rlax.signed_hyperbolic(x, epsilon)


def unscale(x: jax.Array, epsilon: float) -> jax.Array:
  """Returns the inverse of `rescale`.

  rlax's form, (sqrt(1 + 4 epsilon y) - 1) / (2 epsilon), loses digits in
  float32: 2e-4 of the result at epsilon 1e-3. The equal 2 y / (1 + sqrt(1 + 4
  epsilon y)) errs by less than 1e-6, and allows an epsilon of 0.
  """
  if epsilon < 0:
    return x
  shifted = jnp.abs(x) + 1.0 + epsilon
  root = 2.0 * shifted / (1.0 + jnp.sqrt(1.0 + 4.0 * epsilon * shifted))
  return jnp.sign(x) * (jnp.square(root) - 1.0)


def n_step_returns(
  transitions: transitions_lib.Transitions, value: jax.Array, n: int
) -> jax.Array:
  """Computes n-step bootstrapped returns, float32 `[T, B]`.

  G_t = sum_{k < m} gamma^k r_{t+k+1} + gamma^m V(x_{t+m}), with m the least of
  n, the transitions left in the sequence, and those left in the episode. A
  truncated episode bootstraps from its last observation.

  Args:
    transitions: `[T, B]`; returns are meaningless if not valid.
    value: float32 `[T, B]`, V of the step that each transition leads to.
    n: at least 1.
  """
  valid, reward, discount = transitions
  # A trace of 0 makes rlax bootstrap here instead of passing into an invalid
  # transition.
  goes_on = jnp.concatenate([valid[1:], jnp.ones_like(valid[:1])])
  returns = jax.vmap(
    rlax.n_step_bootstrapped_returns, in_axes=(1, 1, 1, None, 1), out_axes=1
  )
  return returns(reward, discount, value, n, goes_on.astype(value.dtype))


def td_errors(
  config: types.Config,
  q_values: jax.Array,
  target_q_values: jax.Array,
  steps: types.Steps,
) -> TDErrors:
  """Computes TD errors.

  y_t = h(n-step return with V = h^-1(Q'(x, argmax_a Q(x, a)))), section 2.3 of
  the R2D2 paper; without `double_q` the maximum of Q' itself.

  Args:
    config: the whole one. U = `unroll_length` <= T transitions are trained;
      later ones help their targets.
    q_values: float32 `[T + 1, B, A]`, of the online network, Q.
    target_q_values: the same of the target network, Q'.
    steps: `[T + 1, B]`, from the first trained transition on.
  """
  chex.assert_rank([q_values, steps.reward], [3, 2])
  chex.assert_equal_shape([q_values, target_q_values])
  chex.assert_equal_shape_prefix([q_values, steps.reward], 2)
  chex.assert_type([q_values, target_q_values, steps.reward], jnp.float32)
  settings = config.loss
  transitions = transitions_lib.from_config(settings, steps)
  selector = q_values if settings.double_q else target_q_values
  best = jnp.argmax(selector[1:], axis=-1)
  best_values = transitions_lib.of_action(target_q_values[1:], best)
  value = unscale(best_values, settings.rescale_epsilon)
  returns = n_step_returns(transitions, value, settings.n_steps)
  target = jax.lax.stop_gradient(rescale(returns, settings.rescale_epsilon))
  trained = slice(config.unroll_length)
  valid, target = transitions.valid[trained], target[trained]
  chosen = transitions_lib.of_action(
    q_values[trained], steps.agent_output.action[trained]
  )
  return TDErrors(valid, jnp.where(valid, target - chosen, 0.0), target)


def q_loss(
  config: types.Config,
  q_values: jax.Array,
  target_q_values: jax.Array,
  steps: types.Steps,
  weight: jax.Array,
) -> tuple[jax.Array, sgd.LossOutput]:
  """Computes the TD loss of trained transitions: half the square, or Huber's.

  Linear in equal pieces of the batch. `weight` is `[B]`; other arguments are as
  in `td_errors`.

  Returns:
    the weighted mean over sequences of the sum over valid transitions (divided
    by U if the reduction is 'mean'); metrics, new priorities and the share of
    valid transitions, by which the trainer divides: 'mean' is over valid
    transitions, 'sum' is that mean x U.
  """
  errors = td_errors(config, q_values, target_q_values, steps)
  settings, unroll_length = config.loss, config.unroll_length
  # Invalid transitions have error 0 and no gradient.
  if settings.huber_delta:
    losses = rlax.huber_loss(errors.error, settings.huber_delta)
  else:
    losses = rlax.l2_loss(errors.error)
  per_sequence = jnp.sum(losses, axis=0)
  if settings.reduction == 'mean':
    # Divides by all transitions; see `sgd.LossOutput.valid_share`.
    per_sequence /= unroll_length
  loss = jnp.mean(weight * per_sequence)
  priorities = mixed_priorities(errors, settings.priority_eta)
  # Of rescaled values.
  metrics = exploration.q_metrics(
    q_values[:unroll_length], errors.target, errors.error, errors.valid
  )
  metrics |= {
    'replay/priority_mean': jnp.mean(priorities),
    'replay/importance_weight_mean': jnp.mean(weight),
  }
  valid_share = 1.0 - metrics['masked_share']
  return loss, sgd.LossOutput(metrics, priorities, valid_share)


def mixed_priorities(errors: TDErrors, eta: float) -> jax.Array:
  """Returns eta max |TD| + (1 - eta) mean |TD|, float32 `[B]`.

  R2D2 (Kapturowski et al. 2019), section 2.3, over valid transitions. It is 0
  without any: a table draws such a sequence only if all priorities are 0.
  """
  size = jnp.abs(errors.error)
  count = jnp.maximum(jnp.sum(errors.valid, axis=0), 1)
  mixed = eta * jnp.max(size, axis=0) + (1.0 - eta) * jnp.sum(size, 0) / count
  return jax.lax.stop_gradient(mixed)


def initial_priorities(config: types.Config, steps: types.Steps) -> jax.Array:
  """Returns the priorities of new sequences, float32 `[W]`.

  Recorded values stand for both networks, so no network runs (Ape-X, Horgan et
  al. 2018, section 3). `steps` is `[T + 1, W]`, with an `agent_output` of
  `action` and `q_values`; the observation is not read.
  """
  steps = jax.tree.map(lambda x: x[config.burn_in :], steps)
  q_values = steps.agent_output.q_values
  errors = td_errors(config, q_values, q_values, steps)
  return mixed_priorities(errors, config.loss.priority_eta)
