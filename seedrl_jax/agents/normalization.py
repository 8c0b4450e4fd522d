"""Normalisation by running means and variances.

Statistics are part of an agent's state. They count the training environments'
numbers on all training devices, each once; evaluation's never get here.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from seedrl_jax import types
from seedrl_jax.agents import base

# Keeps numbers that never vary from being divided by 0.
_EPSILON = 1e-8


class Statistics(NamedTuple):
  """Mean and variance of all numbers so far, float32 `[...]`.

  `num`, a float32 scalar, says how many; at 0 the mean is 0, the variance 1.
  """

  num: jax.Array
  mean: jax.Array
  var: jax.Array


# Of each leaf of an observation, `()` if it is not normalised.
ObservationStatistics = tuple[Statistics | tuple[()], ...]


def initial(shape: tuple[int, ...] = ()) -> Statistics:
  """Returns the statistics of no numbers."""
  return Statistics(jnp.zeros(()), jnp.zeros(shape), jnp.ones(shape))


def merge(old: Statistics, x: jax.Array, counts: jax.Array) -> Statistics:
  """Adds a batch's numbers on all devices, under `base.AXIS`.

  Chan, Golub and LeVeque 1983, equation 2.1. All devices get the same bits.

  Args:
    old: of numbers `[...]`.
    x: the device's own, `[T, B, ...]`.
    counts: bool `[T, B]`, whether a number counts.
  """
  counts = counts.reshape((*counts.shape, *[1] * (x.ndim - counts.ndim)))
  # Numbers around a far mean would lose their digits.
  x = x.astype(jnp.float32) - old.mean

  def total(values: jax.Array) -> jax.Array:
    device_total = jnp.sum(jnp.where(counts, values, 0.0), axis=(0, 1))
    return jax.lax.psum(device_total, base.AXIS)

  added = jax.lax.psum(jnp.sum(counts, dtype=jnp.float32), base.AXIS)
  delta = total(x) / jnp.maximum(added, 1.0)
  squares = total(jnp.square(x - delta))
  num = old.num + added
  share = added / jnp.maximum(num, 1.0)
  var = (1.0 - share) * (old.var + share * jnp.square(delta))
  var += squares / jnp.maximum(num, 1.0)
  return Statistics(
    num,
    old.mean + share * delta,
    # Without a number the variance is not 0 but unknown.
    jnp.where(num > 0.0, var, old.var),
  )


def deviation(statistics: Statistics) -> jax.Array:
  """Returns the standard deviation, never 0."""
  return jnp.sqrt(statistics.var + _EPSILON)


def normalize(statistics: Statistics, x: jax.Array, clip: float) -> jax.Array:
  """Maps `[..., *shape]` to mean 0 and deviation 1, then clips it."""
  return clipped((x - statistics.mean) / deviation(statistics), clip)


def clipped(x: jax.Array, clip: float) -> jax.Array:
  """Returns `x` within [-clip, clip]; 0 leaves it."""
  return jnp.clip(x, -clip, clip) if clip else x


def initial_observations(observation: types.Nest) -> ObservationStatistics:
  """Returns statistics for a nest of `ArraySpec`.

  Only floating leaves have any: bytes are images or codes.
  """
  specs = jax.tree.leaves(observation, is_leaf=types.is_spec)
  return tuple(
    initial(spec.shape) if np.issubdtype(spec.dtype, np.floating) else ()
    for spec in specs
  )


def merge_observations(
  old: ObservationStatistics, steps: types.Steps
) -> ObservationStatistics:
  """Adds the observations of steps `[T + 1, B]`, those of new episodes too."""
  # The first step is the last of the unroll before.
  counts = jnp.ones(steps.reward[1:].shape, bool)
  leaves = jax.tree.leaves(steps.observation)
  return tuple(
    merge(statistics, x[1:], counts) if statistics else ()
    for statistics, x in zip(old, leaves, strict=True)
  )


def normalize_observation(
  statistics: ObservationStatistics, observation: types.Nest, clip: float
) -> types.Nest:
  """Normalises the leaves `[..., *shape]` that have statistics."""
  leaves, structure = jax.tree.flatten(observation)
  normalized = [
    normalize(leaf_statistics, x, clip) if leaf_statistics else x
    for leaf_statistics, x in zip(statistics, leaves, strict=True)
  ]
  return jax.tree.unflatten(structure, normalized)


def next_return(
  previous: jax.Array, reward: jax.Array, first: jax.Array, discount: float
) -> jax.Array:
  """Returns the discounted sum of an episode's rewards so far, `[B]`.

  Its deviation scales rewards, as in OpenAI's VecNormalize. An agent keeps it
  in the core state of each environment. `previous` is that of the step before;
  `reward` and `first`, whether an episode starts, are of this step.
  """
  return jnp.where(first, 0.0, discount * previous + reward)


def merge_returns(
  old: Statistics, steps: types.Steps, previous: jax.Array, discount: float
) -> Statistics:
  """Adds the returns so far after each transition of steps `[T + 1, B]`.

  `previous` are the returns `[B]` of the step before the first.
  """
  first = steps.step_type == types.StepType.FIRST

  def step(
    value: jax.Array, now: tuple[jax.Array, jax.Array]
  ) -> tuple[jax.Array, jax.Array]:
    value = next_return(value, *now, discount)
    return value, value

  _, returns = jax.lax.scan(step, previous, (steps.reward, first))
  return merge(old, returns[1:], ~first[1:])
