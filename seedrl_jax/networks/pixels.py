"""Pixels normalised by their means and standard deviations over a run.

Most of a game's image never changes. Without normalisation, the part that all
images share dominates the network's inputs and gradients. In a run of several
tasks, each of the K tasks has its own statistics.

As in `popart`, statistics are parameters, and `absorb` updates them.
"""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from seedrl_jax import types
from seedrl_jax.networks import popart

# Before this many, pixels stay as they are: few frames of as many games that
# have just begun hardly differ.
_LEAST_OBSERVATIONS = 10_000
# The least standard deviation, of pixels in [0, 1]: five levels of brightness.
_LEAST_DEVIATION = 0.02
# Normalised pixels are clipped to [-x, x], as in random network distillation
# (arXiv 1810.12894, section 2.4).
_CLIP = 5.0


class Moments(NamedTuple):
  """Means of each pixel in [0, 1] and of its square, float32 `[...]`.

  `num` says over how many observations, float32 scalar; of a device and
  micro-batch, if there are several. With K tasks, `num` is `[K]`, and what is
  `[...]` is `[K, ...]`. A batch's means are then over all observations, with 0
  in place of other tasks'.
  """

  num: jax.Array
  mean: jax.Array
  square: jax.Array


# By the name of the `Statistics` in the parameters.
NamedMoments = dict[str, Moments]
_PREFIX = 'pixels_'


def name(index: int) -> str:
  """Returns the name of the `Statistics` of an observation's array."""
  return f'{_PREFIX}{index}'


class Statistics(nn.Module):
  """The moments of all observations so far, for the pixels of one array."""

  shape: tuple[int, ...]  # of an input of the torso, [..., stack * C]
  stack: int  # frames
  num_tasks: int = 0  # K; 0 in a run of one

  @nn.compact
  def __call__(self, task: jax.Array | None = None) -> Moments:
    """Returns the moments of `shape`, the same for each frame of the stack.

    With `task`, int32 `[N]`, they are those of each, `[N, *shape]`. Until there
    are enough observations, the mean is 0 and the deviation 1.
    """
    tasks = (self.num_tasks,) if self.num_tasks else ()
    shape = (*tasks, *self.shape[:-1], self.shape[-1] // self.stack)
    zeros = nn.initializers.zeros
    num, mean, square = jax.lax.stop_gradient(
      Moments(
        self.param('num', zeros, tasks),
        self.param('mean', zeros, shape),
        self.param('square', zeros, shape),
      )
    )
    is_ready = _like(num, mean) >= _LEAST_OBSERVATIONS
    mean = jnp.where(is_ready, mean, 0.0)
    square = jnp.where(is_ready, square, 1.0)
    if task is not None:
      num, mean, square = num[task], mean[task], square[task]
    repeats = (*[1] * (len(shape) - 1), self.stack)
    return Moments(num, jnp.tile(mean, repeats), jnp.tile(square, repeats))


def _like(num: jax.Array, x: jax.Array) -> jax.Array:
  """Returns a number per task, or a scalar, to broadcast with `x`."""
  return num.reshape((*num.shape, *[1] * (x.ndim - num.ndim)))


def _to_unit(x: jax.Array) -> jax.Array:
  return x.astype(jnp.float32) * (1.0 / 255.0)


def moments(
  x: jax.Array, task: jax.Array | None = None, num_tasks: int = 0
) -> Moments:
  """Returns the moments of uint8 frames `[T, B, ...]`, of shape `[...]`.

  `task` is int32 `[T, B]`; None in a run of one.
  """
  length, batch = x.shape[:2]
  x = _to_unit(x)
  if task is None:
    return Moments(
      jnp.float32(length * batch),
      jnp.mean(x, (0, 1)),
      jnp.mean(jnp.square(x), (0, 1)),
    )
  code = jax.nn.one_hot(task, num_tasks)
  mean, square = (
    jnp.einsum('tbk,tb...->k...', code, y) / (length * batch)
    for y in (x, jnp.square(x))
  )
  return Moments(jnp.sum(code, (0, 1)), mean, square)


def normalize(statistics: Moments, x: jax.Array) -> jax.Array:
  """Maps uint8 `[N, ...]` to float32 with mean 0 and deviation 1, clipped."""
  variance = statistics.square - jnp.square(statistics.mean)
  scale = jax.lax.rsqrt(jnp.maximum(variance, _LEAST_DEVIATION**2))
  return jnp.clip((_to_unit(x) - statistics.mean) * scale, -_CLIP, _CLIP)


def absorb(params: types.Nest, batch: NamedMoments) -> types.Nest:
  """Adds the moments of a batch, over all devices, to the `Statistics`."""
  if not isinstance(params, dict):
    return params
  return {
    key: _merge(value, batch[key]) if key in batch else absorb(value, batch)
    for key, value in params.items()
  }


def _merge(old: dict[str, jax.Array], new: Moments) -> dict[str, jax.Array]:
  num = old['num'] + new.num
  # A task without observations changes nothing.
  share = _like(new.num / jnp.maximum(num, 1.0), new.mean)
  part = _like(new.num / jnp.sum(new.num), new.mean)
  merged = {'num': num}
  for field in ('mean', 'square'):
    mean = getattr(new, field) / jnp.where(part > 0.0, part, 1.0)
    merged[field] = old[field] + share * (mean - old[field])
  return merged


def trained(params: types.Nest) -> types.Nest:
  """Returns `params` without these `Statistics` and those of PopArt."""
  if not isinstance(params, dict):
    return params
  return {
    key: trained(value)
    for key, value in params.items()
    if not key.startswith((_PREFIX, popart.NAME))
  }
