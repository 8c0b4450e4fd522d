"""Codes the arrays of an observation as features.

Environments send small dtypes, as uint8, which become features on the device.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from seedrl_jax.networks import observations, pixels


class Coded(nn.Module):
  """Codes numbers by their values: one-hot, or by a table of vectors."""

  leaf: observations.Leaf
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps integers `[N, ..., k * C]`, k frames, to `[N, ..., F]`.

    The one-hot code of a value out of range is zero, and its vector that of the
    nearest one.
    """
    leaf = self.leaf
    x = x.reshape((len(x), *(x.shape[1:] or (1,)))).astype(jnp.int32)
    starts = leaf.arrange_values([x.start for x in leaf.spec.categories or ()])
    frames = x.shape[-1] // starts.shape[-1]
    index = x - np.tile(starts, frames).astype(np.int32)
    counts = np.tile(leaf.value_counts(), frames)
    first_row = np.cumsum(counts) - counts
    rows = int(counts.sum())
    if leaf.is_embedded:
      table = nn.Embed(rows, observations.VECTOR_SIZE, dtype=self.dtype)
      vectors = table(jnp.clip(index, 0, counts - 1) + first_row)
      return vectors.reshape((*index.shape[:-1], -1))
    entry = np.repeat(np.arange(len(counts)), counts)
    value = np.arange(rows) - first_row[entry]
    return (index[..., entry] == value).astype(self.dtype)


def to_features(
  x: jax.Array,
  dtype: jax.typing.DTypeLike,
  has_levels: bool = False,
  statistics: pixels.Moments | None = None,
) -> jax.Array:
  """Turns raw numbers `[N, ...]` into floating point features of `dtype`.

  * floats and booleans are cast, not scaled;
  * uint8 is divided by 255 (images, RAM); if `has_levels`, a one-hot code of
    each entry is added along the last axis; with `statistics` of pixels, it is
    normalised by them;
  * scalar integers (MiniGrid's direction, FrozenLake's cell) become one-hot,
    plus the scaled number to tell values beyond the code apart;
  * other integer arrays (Blackjack's hand) are cast, not scaled.
  """
  if x.ndim == 1 and jnp.issubdtype(x.dtype, jnp.integer):
    levels = observations.SCALAR_LEVELS
    scaled = x[:, None].astype(dtype) / levels
    return jnp.concatenate([_one_hot(x, levels, dtype), scaled], -1)
  if statistics is not None:
    return pixels.normalize(statistics, x).astype(dtype)
  features = x.astype(dtype)
  if x.dtype == jnp.uint8:
    features *= 1.0 / 255.0
  if not has_levels:
    return features
  code = _one_hot(x, observations.GRID_LEVELS, dtype)
  code = code.reshape((*x.shape[:-1], -1))
  return jnp.concatenate([code, features], axis=-1)


def _one_hot(
  x: jax.Array, levels: int, dtype: jax.typing.DTypeLike
) -> jax.Array:
  clipped = jnp.clip(x.astype(jnp.int32), 0, levels - 1)
  return jax.nn.one_hot(clipped, levels, dtype=dtype)
