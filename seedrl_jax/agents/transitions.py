"""Transitions between recorded steps.

Transition t takes action t in step t and leads to step t + 1 with
`reward[t + 1]` and `discount[t + 1]`.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from seedrl_jax import types


class Transitions(NamedTuple):
  """The T transitions between the T + 1 steps of an unroll, all `[T, B]`."""

  valid: jax.Array  # bool; False if it leads to FIRST: its action did nothing
  reward: jax.Array  # float32, clipped and scaled; 0 if not valid
  discount: jax.Array  # float32, environment's x agent's; 0 if not valid


def from_steps(
  steps: types.Steps,
  *,
  discount: float,
  reward_clip: float = 0.0,
  reward_scale: float = 1.0,
) -> Transitions:
  """Returns the transitions between steps `[T + 1, B]`.

  Rewards are clipped to [-reward_clip, reward_clip] (0: not at all), then
  scaled. Reads only `reward`, `discount` and `step_type`.
  """
  chex.assert_rank([steps.reward, steps.discount, steps.step_type], 2)
  valid = steps.step_type[1:] != types.StepType.FIRST
  reward = steps.reward[1:]
  if reward_clip:
    reward = jnp.clip(reward, -reward_clip, reward_clip)
  return Transitions(
    valid=valid,
    reward=jnp.where(valid, reward * reward_scale, 0.0),
    discount=jnp.where(valid, steps.discount[1:] * discount, 0.0),
  )


def from_config(config: types.Config, steps: types.Steps) -> Transitions:
  """Returns `from_steps` with the settings of `config.loss`."""
  return from_steps(
    steps,
    discount=config.discount,
    reward_clip=config.reward_clip,
    reward_scale=config.reward_scale,
  )


def sums_to_go(errors: jax.Array, trace: jax.Array) -> jax.Array:
  """Returns s_t = errors_t + trace_t s_{t+1}, `[T, B]`."""

  def step(
    later: jax.Array, xs: tuple[jax.Array, jax.Array]
  ) -> tuple[jax.Array, jax.Array]:
    error, c = xs
    total = error + c * later
    return total, total

  start = jnp.zeros_like(errors[0])
  _, sums = jax.lax.scan(step, start, (errors, trace), reverse=True)
  return sums


def mean_of_valid(x: jax.Array, valid: jax.Array) -> jax.Array:
  """Returns the mean of `x` over valid transitions `[T, B]`; 0 if none is.

  Only for metrics: a loss needs the same denominator in all pieces of a batch,
  see `sgd.LossOutput.valid_share`.
  """
  chex.assert_equal_shape([x, valid])
  return jnp.sum(jnp.where(valid, x, 0.0)) / jnp.maximum(jnp.sum(valid), 1)


def explained_variance(
  target: jax.Array, error: jax.Array, valid: jax.Array
) -> jax.Array:
  """Returns the share of the targets' variance that the values explain.

  1 is a perfect fit, 0 is no better than a constant, and less is worse. All are
  `[T, B]`; `error` is target - value.
  """

  def variance(x: jax.Array) -> jax.Array:
    return mean_of_valid(jnp.square(x - mean_of_valid(x, valid)), valid)

  total = variance(target)
  share = 1.0 - variance(error) / jnp.maximum(total, 1e-8)
  # Without a valid transition, or with equal targets, there is none to explain.
  return jnp.where(total > 0, share, 0.0)


def of_action(values: jax.Array, action: jax.Array) -> jax.Array:
  """Picks from `[..., A]` the value of each action `[...]`.

  Multiplies by the one-hot code: a gather's gradient would be a slow scatter.
  Values must be finite.
  """
  chex.assert_equal_shape_prefix([values, action], action.ndim)
  code = jax.nn.one_hot(action, values.shape[-1], dtype=values.dtype)
  return jnp.sum(code * values, axis=-1)
