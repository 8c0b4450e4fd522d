"""Lambda-returns and the Q-learning loss of PQN."""

import chex
import jax
import jax.numpy as jnp
import rlax

from seedrl_jax import types
from seedrl_jax.agents import exploration, sgd
from seedrl_jax.agents import transitions as transitions_lib


def lambda_returns(
  transitions: transitions_lib.Transitions, value: jax.Array, lambda_: float
) -> jax.Array:
  """Computes Peng's Q(lambda) returns, float32 `[T, B]`.

  G_t = r_{t+1} + gamma ((1 - lambda) V(x_{t+1}) + lambda G_{t+1}), section 4 of
  the PQN paper (arXiv 2407.04811). G is V at the end of the unroll and at a
  truncated episode's last step. Exploring actions do not cut the trace.

  Args:
    transitions: `[T, B]`; returns are meaningless if not valid.
    value: float32 `[T, B]`, V = max_a Q of the step each transition leads to.
    lambda_: 0 for one-step Q-learning, 1 for Monte Carlo returns.
  """
  valid, reward, discount = transitions
  goes_on = jnp.concatenate([valid[1:], jnp.ones_like(valid[:1])])
  returns = jax.vmap(rlax.lambda_returns, in_axes=1, out_axes=1)
  return returns(reward, discount, value, lambda_ * goes_on)


def targets(
  config: types.Config, q_values: jax.Array, steps: types.Steps
) -> jax.Array:
  """Returns the targets of Q(x_t, a_t), float32 `[T, B]`, without gradient.

  Args:
    config: `config.loss`.
    q_values: float32 `[T + 1, B, A]`.
    steps: `[T + 1, B]`.
  """
  chex.assert_type([q_values, steps.reward], jnp.float32)
  value = jnp.max(q_values[1:], axis=-1)
  transitions = transitions_lib.from_config(config, steps)
  returns = lambda_returns(transitions, value, config.lambda_)
  return jax.lax.stop_gradient(returns)


def q_loss(
  q_values: jax.Array, steps: types.Steps
) -> tuple[jax.Array, sgd.LossOutput]:
  """Computes half the mean squared error of action values.

  Linear in equal pieces of the batch. `q_values` is float32 `[T + 1, B, A]`,
  `steps` `[T + 1, B]` with an `agent_output` of `action` and `target`, whose
  last step is not read.

  Returns:
    the sum over valid transitions divided by T x B, and auxiliary outputs.
  """
  chex.assert_equal_shape_prefix([q_values, steps.reward], 2)
  valid = steps.step_type[1:] != types.StepType.FIRST
  action, target = jax.tree.map(lambda x: x[:-1], steps.agent_output)
  chosen = transitions_lib.of_action(q_values[:-1], action)
  error = jnp.where(valid, target - chosen, 0.0)
  # Divides by all transitions; see `sgd.LossOutput.valid_share`.
  loss = jnp.mean(rlax.l2_loss(error))
  metrics = exploration.q_metrics(q_values[:-1], target, error, valid)
  valid_share = 1.0 - metrics['masked_share']
  return loss, sgd.LossOutput(metrics, valid_share=valid_share)
