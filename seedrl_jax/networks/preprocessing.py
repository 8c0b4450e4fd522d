"""Preprocessing on the device: environments send small dtypes, as uint8."""

import jax
import jax.numpy as jnp

# Smaller integer images are grids of categories (MiniGrid's 7x7x3).
SMALLEST_PICTURE = 32
# One-hot levels of grids and scalar integers; the last includes all larger
# values.
_GRID_LEVELS = 16
_SCALAR_LEVELS = 64


def is_channels_first(shape: tuple[int, ...], layout: str) -> bool:
  """Returns whether an observation has its channels first.

  Layout 'auto' takes the smaller of a rank-3 shape's first and last axis for
  the channels, the last if they are equal.
  """
  if len(shape) != 3 or layout == 'channels_last':
    return False
  return layout == 'channels_first' or shape[0] < shape[-1]


def device_shape(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
  """Returns the shape of a leaf of `shape` after `to_device_layout`."""
  if is_channels_first(shape, layout):
    return (*shape[1:], shape[0])
  return shape


def to_device_layout(x: jax.Array, rank: int, layout: str) -> jax.Array:
  """Moves channels of `[T, B, ...]` last; `rank` excludes T and B."""
  shape = x.shape[x.ndim - rank :]
  return jnp.moveaxis(x, -3, -1) if is_channels_first(shape, layout) else x


def is_picture(shape: tuple[int, ...]) -> bool:
  """Returns whether `[H, W, C]` is large enough for a strided convolution."""
  return len(shape) == 3 and min(shape[:2]) >= SMALLEST_PICTURE


def to_features(x: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
  """Turns raw numbers `[N, ...]` into floating point features of `dtype`.

  * floats and booleans are cast, not scaled;
  * uint8 is divided by 255 (images, RAM); an image smaller than
    `SMALLEST_PICTURE` has categories, so a one-hot code of each entry is added
    along the last axis;
  * scalar integers (MiniGrid's direction, FrozenLake's cell) become one-hot,
    plus the scaled number to tell values beyond the code apart;
  * other integer arrays (Blackjack's hand) are cast, not scaled.
  """
  if x.dtype != jnp.uint8 or x.ndim == 1:
    if x.ndim > 1 or not jnp.issubdtype(x.dtype, jnp.integer):
      return x.astype(dtype)
    scaled = x[:, None].astype(dtype) / _SCALAR_LEVELS
    return jnp.concatenate([_one_hot(x, _SCALAR_LEVELS, dtype), scaled], -1)
  scaled = scale_bytes(x, dtype)
  if x.ndim != 4 or is_picture(x.shape[1:]):
    return scaled
  code = _one_hot(x, _GRID_LEVELS, dtype).reshape((*x.shape[:-1], -1))
  return jnp.concatenate([code, scaled], axis=-1)


def scale_bytes(x: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
  """Casts to `dtype`; also divides uint8 by 255."""
  features = x.astype(dtype)
  return features * (1.0 / 255.0) if x.dtype == jnp.uint8 else features


def _one_hot(
  x: jax.Array, levels: int, dtype: jax.typing.DTypeLike
) -> jax.Array:
  clipped = jnp.clip(x.astype(jnp.int32), 0, levels - 1)
  return jax.nn.one_hot(clipped, levels, dtype=dtype)
