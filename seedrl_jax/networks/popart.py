"""PopArt: a value head whose targets are normalised returns.

van Hasselt et al. 2016 (arXiv 1602.07714) and Hessel et al. 2018 (arXiv
1809.04474, section 3). With mean m and deviation d of the returns, the value is
d n + m of the head's linear output n, and losses are in units of d.

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
  """Mean and variance of returns, float32 scalars.

  Of a batch, both are about the old mean: E(x - m) and E(x - m)^2.
  """

  mean: jax.Array
  variance: jax.Array

  @property
  def deviation(self) -> jax.Array:
    """The scale of values, between bounds."""
    return jnp.clip(jnp.sqrt(self.variance), _LEAST, _MOST)


class Statistics(nn.Module):
  """The statistics of a head, which begin with mean 0 and variance 1."""

  @nn.compact
  def __call__(self) -> Moments:
    """Returns the moments; counts the updates, too."""
    self.param('count', nn.initializers.zeros, ())
    return jax.lax.stop_gradient(
      Moments(
        self.param('mean', nn.initializers.zeros, ()),
        self.param('variance', nn.initializers.ones, ()),
      )
    )


def unnormalize(value: jax.Array) -> jax.Array:
  """Returns values of a head's outputs; call it in the head's module."""
  moments = Statistics(name=NAME)()
  return moments.deviation * value + moments.mean


def moments(params: types.Nest) -> Moments:
  """Returns the moments of a network's value head, which must have PopArt."""
  statistics = jax.lax.stop_gradient(params['baseline'][NAME])
  return Moments(statistics['mean'], statistics['variance'])


def batch_moments(
  old: Moments, returns: jax.Array, weight: jax.Array
) -> Moments:
  """Returns the weighted means over a batch of what `absorb` takes.

  Linear in equal pieces of a batch; `returns` and `weight` are `[...]`.
  """
  errors = returns - old.mean
  return jax.lax.stop_gradient(
    Moments(jnp.mean(weight * errors), jnp.mean(weight * jnp.square(errors)))
  )


def absorb(params: types.Nest, batch: Moments) -> types.Nest:
  """Adds a batch's moments, over all devices, to a network's value head.

  The n-th batch counts 1 / n at least, so that the scale is right from the
  first update on. The first one leaves the head as it is: its values, which
  were 0, become the mean of the returns.
  """
  head = params['baseline']
  old, count = moments(params), head[NAME]['count'] + 1.0
  rate = jnp.maximum(_RATE, 1.0 / count)
  change = rate * batch.mean
  variance = (1.0 - rate) * old.variance + rate * batch.variance
  # Rounding may make it negative.
  variance = jnp.maximum(variance - jnp.square(change), 0.0)
  new = Moments(old.mean + change, variance)
  linear, is_first = head[_LINEAR], count == 1.0
  ratio = jnp.where(is_first, 1.0, old.deviation / new.deviation)
  shift = jnp.where(is_first, 0.0, change / new.deviation)
  linear = {
    'kernel': ratio * linear['kernel'],
    'bias': ratio * linear['bias'] - shift,
  }
  statistics = {'count': count, **new._asdict()}
  return {**params, 'baseline': {_LINEAR: linear, NAME: statistics}}
