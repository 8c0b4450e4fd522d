"""From an environment's observation leaf to what a torso can take in.

`network.Network` calls these for each leaf of an observation, on the device:
environments send their own dtypes and layouts (uint8, channels first), which
is a quarter of the bytes of float32 and costs the host nothing.
"""

import jax
import jax.numpy as jnp

# Below this many pixels a side, an integer image is a grid of small category
# numbers (MiniGrid's 7x7x3), not a picture.
SMALLEST_PICTURE = 32
# One-hot levels for grids and for scalar integers; the last one is shared by
# everything larger.
_GRID_LEVELS = 16
_SCALAR_LEVELS = 64


def is_channels_first(shape: tuple[int, ...], layout: str) -> bool:
  """Says whether a rank-3 observation has its channels first.

  'auto' takes the smaller of the first and last axis for the channels, and
  the last one if they are equal: `(4, 84, 84)` is channels first,
  `(72, 96, 4)` and `(7, 7, 3)` are not.

  Args:
    shape: of the observation, without batch dimensions.
    layout: 'auto', 'channels_first' or 'channels_last'.
  """
  if len(shape) != 3 or layout == 'channels_last':
    return False
  return layout == 'channels_first' or shape[0] < shape[-1]


def device_shape(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
  """Returns the shape that `to_device_layout` gives a leaf of `shape`."""
  if is_channels_first(shape, layout):
    return (*shape[1:], shape[0])
  return shape


def to_device_layout(x: jax.Array, rank: int, layout: str) -> jax.Array:
  """Moves channels last, whatever the environment gave.

  Args:
    x: `[T, B, ...]`, of which the last `rank` dimensions are the observation.
    rank: of the observation, without batch dimensions.
    layout: as in `is_channels_first`.

  Returns:
    `[T, B, H, W, C]` for images, `x` itself for everything else.
  """
  shape = x.shape[x.ndim - rank :]
  return jnp.moveaxis(x, -3, -1) if is_channels_first(shape, layout) else x


def is_picture(shape: tuple[int, ...]) -> bool:
  """Says whether `[H, W, C]` is large enough for a strided convolution."""
  return len(shape) == 3 and min(shape[:2]) >= SMALLEST_PICTURE


def to_features(x: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
  """Turns raw numbers into a network's floating point input.

  * floats are cast, not scaled;
  * uint8 is divided by 255 (pictures, RAM), and if it is an image smaller
    than `SMALLEST_PICTURE` a one-hot code of each entry is added, because
    there the numbers are categories and /255 makes them all alike;
  * scalar integers (MiniGrid's direction, FrozenLake's cell) become one-hot,
    with the scaled number beside it to tell apart what lies beyond the code;
  * other integer arrays (Blackjack's hand) are cast, not scaled.

  Args:
    x: `[N, ...]` in the environment's dtype.
    dtype: floating point type of the result.

  Returns:
    `[N, ...]` of `dtype`, with a larger last dimension if a code was added.
  """
  if x.dtype != jnp.uint8 or x.ndim == 1:
    if x.ndim > 1 or jnp.issubdtype(x.dtype, jnp.floating):
      return x.astype(dtype)
    scaled = x[:, None].astype(dtype) / _SCALAR_LEVELS
    return jnp.concatenate([_one_hot(x, _SCALAR_LEVELS, dtype), scaled], -1)
  scaled = scale_bytes(x, dtype)
  if x.ndim != 4 or is_picture(x.shape[1:]):
    return scaled
  code = _one_hot(x, _GRID_LEVELS, dtype).reshape((*x.shape[:-1], -1))
  return jnp.concatenate([code, scaled], axis=-1)


def scale_bytes(x: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
  """Casts to `dtype`, and divides by 255 what was uint8."""
  features = x.astype(dtype)
  return features * (1.0 / 255.0) if x.dtype == jnp.uint8 else features


def _one_hot(
  x: jax.Array, levels: int, dtype: jax.typing.DTypeLike
) -> jax.Array:
  clipped = jnp.clip(x.astype(jnp.int32), 0, levels - 1)
  return jax.nn.one_hot(clipped, levels, dtype=dtype)
