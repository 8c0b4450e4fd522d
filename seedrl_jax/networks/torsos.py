"""Torsos: from one preprocessed observation leaf `[N, ...]` to `[N, F]`.

`network.Network` makes one for each leaf with `make_torso` and runs it over
all steps of all environments at once (N = T x B), never inside a scan: XLA's
CPU backend runs convolutions 10 to 20 times slower in a loop.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from seedrl_jax.networks import preprocessing

# Keeps the variance of what passes through a ReLU.
_RELU_INIT = nn.initializers.orthogonal(np.sqrt(2.0))


class ConvLayer(NamedTuple):
  """A square convolution without padding."""

  channels: int
  kernel: int
  stride: int


class ConvTorso(NamedTuple):
  """A published stack of convolutions and the dense layer behind it."""

  layers: tuple[ConvLayer, ...]
  dense_size: int


CONV_TORSOS = {
  # Mnih et al., 2015.
  'nature': ConvTorso(
    (ConvLayer(32, 8, 4), ConvLayer(64, 4, 2), ConvLayer(64, 3, 1)), 512
  ),
  # Mnih et al., 2013; IMPALA's shallow network (arXiv 1802.01561, figure 3).
  'shallow': ConvTorso((ConvLayer(16, 8, 4), ConvLayer(32, 4, 2)), 256),
  # For speed trials on CPUs, where the others are the whole cost.
  'tiny': ConvTorso((ConvLayer(16, 8, 8),), 64),
  # For images of a few cells a side, such as MiniGrid's 7x7.
  'grid': ConvTorso((ConvLayer(16, 3, 1), ConvLayer(32, 3, 1)), 64),
}
_RESNET_DENSE_SIZE = 256
TORSOS = ('auto', 'mlp', 'resnet', *CONV_TORSOS)


class MLP(nn.Module):
  """ReLU layers on the flattened input.

  Attributes:
    sizes: units of each layer.
    dtype: of the computation; parameters are float32.
  """

  sizes: Sequence[int]
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps `[N, ...]` to `[N, sizes[-1]]`."""
    x = x.reshape((x.shape[0], -1))
    for size in self.sizes:
      x = nn.relu(nn.Dense(size, dtype=self.dtype, kernel_init=_RELU_INIT)(x))
    return x


class StridedConv(nn.Module):
  """A square convolution without padding, as one matrix product.

  Blocks of `stride x stride` pixels become channels (space to depth). One
  product gives what each block adds to each output that it touches, and the
  outputs are sums of shifted products. Function and parameters are those of
  the ordinary convolution. XLA's CPU backend has no fast path for the
  gradient of a strided convolution's kernel; this way it is a product too,
  and an update is several times quicker there.

  Attributes:
    layer: the convolution; its kernel must be a multiple of its stride.
    dtype: of the computation; parameters are float32.
  """

  layer: ConvLayer
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps `[N, H, W, C]` to `[N, H', W', layer.channels]`."""
    channels, size, stride = self.layer
    depth = x.shape[-1]
    kernel = self.param(
      'kernel', _RELU_INIT, (size, size, depth, channels), jnp.float32
    )
    bias = self.param('bias', nn.initializers.zeros, (channels,), jnp.float32)
    span = size // stride
    blocks = _space_to_depth(x, size, stride).astype(self.dtype)
    kernel = kernel.reshape((span, stride, span, stride, depth, channels))
    kernel = kernel.transpose((1, 3, 4, 0, 2, 5)).astype(self.dtype)
    parts = blocks @ kernel.reshape((blocks.shape[-1], -1))
    parts = parts.reshape((*parts.shape[:-1], span, span, channels))
    rows, columns = (n - span + 1 for n in blocks.shape[1:3])
    y = bias.astype(self.dtype)
    for i in range(span):
      for j in range(span):
        y = y + parts[:, i : i + rows, j : j + columns, i, j]
    return y


class Convolutional(nn.Module):
  """Convolutions without padding, then one dense layer, all ReLU.

  Attributes:
    layers: the convolutions.
    dense_size: output units, F.
    dtype: of the computation; parameters are float32.
  """

  layers: Sequence[ConvLayer]
  dense_size: int
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps `[N, H, W, C]` to `[N, F]`."""
    for i, layer in enumerate(self.layers):
      x = nn.relu(_make_conv(layer, self.dtype, f'conv_{i}')(x))
    return MLP((self.dense_size,), self.dtype)(x)


class ResidualBlock(nn.Module):
  """Two 3x3 convolutions beside an identity, ReLU first."""

  channels: int
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps `[N, H, W, channels]` to the same shape."""
    y = x
    for _ in range(2):
      y = nn.Conv(self.channels, (3, 3), dtype=self.dtype)(nn.relu(y))
    return x + y


class DeepResNet(nn.Module):
  """IMPALA's deep network (arXiv 1802.01561, figure 3, right).

  Attributes:
    channels: of each stack: convolution, max-pool, two residual blocks.
    dense_size: output units, F.
    dtype: of the computation; parameters are float32.
  """

  channels: Sequence[int]
  dense_size: int
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps `[N, H, W, C]` to `[N, F]`."""
    for channels in self.channels:
      x = nn.Conv(channels, (3, 3), dtype=self.dtype)(x)
      x = nn.max_pool(x, (3, 3), strides=(2, 2), padding='SAME')
      for _ in range(2):
        x = ResidualBlock(channels, self.dtype)(x)
    return MLP((self.dense_size,), self.dtype)(nn.relu(x))


def resolve_torso(name: str, shape: tuple[int, ...]) -> str:
  """Returns the torso that a leaf of `shape` gets where the config has `name`.

  'auto' takes 'shallow' for pictures (both sides >= 32), 'grid' for smaller
  images of at least 5 cells a side, 'mlp' for everything else. A convolution
  that is named holds for the images of a dict; its other leaves get 'mlp'.

  Args:
    name: one of `TORSOS`.
    shape: of the leaf, without batch dimensions, channels last.

  Raises:
    ValueError: where there is no such torso, or the image is too small for
      it.
  """
  if name not in TORSOS:
    raise ValueError(f'network.torso is {name!r}; it can be one of {TORSOS}.')
  if len(shape) != 3 or name == 'mlp':
    return 'mlp'
  if name != 'auto':
    smallest = _smallest_side(name)
    if min(shape[:2]) < smallest:
      raise ValueError(
        f'network.torso={name} needs images of at least {smallest} pixels a '
        f"side, and this one is {shape[0]}x{shape[1]}; take 'auto'."
      )
    return name
  if preprocessing.is_picture(shape):
    return 'shallow'
  return 'grid' if min(shape[:2]) >= _smallest_side('grid') else 'mlp'


def make_torso(
  config: Any, shape: tuple[int, ...], name: str | None = None
) -> nn.Module:
  """Makes the torso of one observation leaf.

  Args:
    config: `config.network`.
    shape: of the leaf, without batch dimensions, channels last.
    name: of the module, where an observation has several.

  Raises:
    ValueError: see `resolve_torso`.
  """
  dtype = jnp.dtype(config.compute_dtype)
  torso = resolve_torso(config.torso, shape)
  if torso == 'mlp':
    return MLP(tuple(config.hidden_sizes), dtype, name=name)
  if torso == 'resnet':
    channels = tuple(c * config.width for c in config.resnet_channels)
    size = config.dense_size or _RESNET_DENSE_SIZE
    return DeepResNet(channels, size, dtype, name=name)
  layers, size = CONV_TORSOS[torso]
  return Convolutional(layers, config.dense_size or size, dtype, name=name)


def _space_to_depth(x: jax.Array, size: int, stride: int) -> jax.Array:
  """Maps `[N, H, W, C]` to `[N, H / stride, W / stride, stride^2 C]`.

  Pixels that no window of `size` reaches are cut off first.
  """
  number, height, width, depth = x.shape
  rows = (height - size) // stride + size // stride
  columns = (width - size) // stride + size // stride
  x = x[:, : rows * stride, : columns * stride]
  # A block's row is one axis of stride * depth numbers: on CPU the fewer the
  # axes, the quicker the transposition.
  x = x.reshape((number, rows, stride, columns, stride * depth))
  x = x.transpose((0, 1, 3, 2, 4))
  return x.reshape((number, rows, columns, -1))


def _make_conv(
  layer: ConvLayer, dtype: jax.typing.DTypeLike, name: str
) -> nn.Module:
  if layer.stride > 1:
    return StridedConv(layer, dtype, name=name)
  return nn.Conv(
    layer.channels,
    (layer.kernel, layer.kernel),
    padding='VALID',
    dtype=dtype,
    kernel_init=_RELU_INIT,
    name=name,
  )


def _smallest_side(name: str) -> int:
  """Returns the least height and width that leave one output cell."""
  side = 1
  if name in CONV_TORSOS:
    for layer in reversed(CONV_TORSOS[name].layers):
      side = (side - 1) * layer.stride + layer.kernel
  return side
