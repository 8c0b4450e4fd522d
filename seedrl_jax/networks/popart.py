"""PopArt: a value head whose targets are normalised returns.

van Hasselt et al. 2016 (arXiv 1602.07714) and Hessel et al. 2018 (arXiv
1809.04474, section 3). With mean m and deviation d of the returns, the value is
d n + m of the head's linear output n, and losses are in units of d. In a run of
several tasks, each of the K tasks has its own output, mean and deviation.

The statistics are parameters without a gradient, so that they are published,
saved and exported with the network. `absorb` updates them, and the head so that
its values stay as they were.
"""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from seedrl_jax import types

# What the statistics take of a batch at least, and bounds of the deviation, as
# in Hessel et al. 2018.
_RATE = 3e-4
_LEAST, _MOST = 1e-4, 1e6
# Of the statistics' module, and so of its parameters.
NAME = 'popart'
_LINEAR = 'Dense_0'


class Moments(NamedTuple):
  """Mean and variance of the returns of each transition's task."""

  mean: jax.Array  # float32 scalar in a run of one task, else `[...]`
  variance: jax.Array  # as `mean`
  code: jax.Array  # float32 `[..., K]`, the task, one-hot

  @property
  def deviation(self) -> jax.Array:
    """The scale of values, between bounds."""
    return _deviation(self.variance)


class BatchMoments(NamedTuple):
  """What a batch says of each task's returns x, float32 `[K]`.

  With the old mean m and the weights w, all of them means over the batch.
  """

  weight: jax.Array  # w
  error: jax.Array  # w (x - m)
  square: jax.Array  # w (x - m)^2


class Values(nn.Module):
  """Values of a head's outputs, whose statistics begin with 0 and 1."""

  @nn.compact
  def __call__(self, outputs: jax.Array, task: jax.Array | None) -> jax.Array:
    """Returns values `[...]` of outputs `[..., K]`; counts the updates, too.

    `task` is int32 `[...]`; None in a run of one.
    """
    shape, zeros = outputs.shape[-1:], nn.initializers.zeros
    self.param('count', zeros, shape)
    mean = self.param('mean', zeros, shape)
    variance = self.param('variance', nn.initializers.ones, shape)
    mean, deviation = jax.lax.stop_gradient((mean, _deviation(variance)))
    values = deviation * outputs + mean
    if task is None:
      return values[..., 0]
    return jnp.take_along_axis(values, task[..., None], axis=-1)[..., 0]


def _deviation(variance: jax.Array) -> jax.Array:
  return jnp.clip(jnp.sqrt(variance), _LEAST, _MOST)


def moments(params: types.Nest, task: jax.Array | None = None) -> Moments:
  """Returns the moments of a network's value head, which must have PopArt.

  `task`, int32 `[...]`, is that of each transition; None in a run of one.
  """
  statistics = jax.lax.stop_gradient(params['baseline'][NAME])
  mean, variance = statistics['mean'], statistics['variance']
  if task is None:
    return Moments(mean[0], variance[0], jnp.ones(1))
  return Moments(mean[task], variance[task], jax.nn.one_hot(task, len(mean)))


def batch_moments(
  old: Moments, returns: jax.Array, weight: jax.Array
) -> BatchMoments:
  """Returns what `absorb` takes of a batch.

  Linear in equal pieces of a batch; `returns` and `weight` are `[...]`.
  """
  errors = returns - old.mean

  def mean(x: jax.Array) -> jax.Array:
    x = (weight * x)[..., None] * old.code
    return jnp.mean(x, axis=range(x.ndim - 1))

  ones, squares = jnp.ones_like(errors), jnp.square(errors)
  batch = BatchMoments(mean(ones), mean(errors), mean(squares))
  return jax.lax.stop_gradient(batch)


def absorb(params: types.Nest, batch: BatchMoments) -> types.Nest:
  """Adds a batch's moments, over all devices, to a network's value head.

  A task's n-th batch counts 1 / n at least, so that the scale is right from the
  first update on. The first one leaves the head as it is: its values, which
  were 0, become the mean of the returns. A task without returns keeps all.
  """
  head = params['baseline']
  old, linear = head[NAME], head[_LINEAR]
  is_present = batch.weight > 0.0
  weight = jnp.where(is_present, batch.weight, 1.0)
  count = old['count'] + is_present
  rate = jnp.maximum(_RATE, 1.0 / jnp.maximum(count, 1.0)) * is_present
  change = rate * batch.error / weight
  variance = (1.0 - rate) * old['variance'] + rate * batch.square / weight
  # Rounding may make it negative.
  variance = jnp.maximum(variance - jnp.square(change), 0.0)
  is_later, deviation = count > 1.0, _deviation(variance)
  ratio = jnp.where(is_later, _deviation(old['variance']) / deviation, 1.0)
  shift = jnp.where(is_later, change / deviation, 0.0)
  linear = {
    'kernel': ratio * linear['kernel'],
    'bias': ratio * linear['bias'] - shift,
  }
  mean = old['mean'] + change
  statistics = {'count': count, 'mean': mean, 'variance': variance}
  return {**params, 'baseline': {_LINEAR: linear, NAME: statistics}}
