"""Torsos: map the features of one observation leaf, `[N, ...]`, to `[N, F]`.

They run on all steps of all environments at once (N = T x B), not in a scan
over time, for the reason of `block_conv.for_loops`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from seedrl_jax import types
from seedrl_jax.networks import health
from seedrl_jax.networks.block_conv import (
  RELU_INIT,
  ConvLayer,
  StridedConv,
  add_bias,
  conv,
)
from seedrl_jax.runtime import settings


class ConvTorso(NamedTuple):
  """A stack of convolutions and a dense layer."""

  layers: tuple[ConvLayer, ...]
  dense_size: int


CONV_TORSOS = {
  # Mnih et al., 2015.
  'nature': ConvTorso(
    (ConvLayer(32, 8, 4), ConvLayer(64, 4, 2), ConvLayer(64, 3, 1)), 512
  ),
  # Mnih et al., 2013; IMPALA's shallow network (arXiv 1802.01561, figure 3).
  'shallow': ConvTorso((ConvLayer(16, 8, 4), ConvLayer(32, 4, 2)), 256),
  # For speed tests on CPUs.
  'tiny': ConvTorso((ConvLayer(16, 8, 8),), 64),
  # For images of a few cells a side, such as MiniGrid's 7x7.
  'grid': ConvTorso((ConvLayer(16, 3, 1), ConvLayer(32, 3, 1)), 64),
}

# Images of both sides at least this large suit strided convolutions.
SMALLEST_PICTURE = 32


def is_picture(shape: tuple[int, ...]) -> bool:
  """Returns whether `[H, W, C]` is large enough for a strided convolution."""
  return len(shape) == 3 and min(shape[:2]) >= SMALLEST_PICTURE


def is_convolution(name: str) -> bool:
  """Returns whether a torso of this name convolves, whatever the shape."""
  return name == 'resnet' or name in CONV_TORSOS


class Activation(NamedTuple):
  """What follows a layer's weights."""

  name: str = 'relu'  # 'relu', 'tanh'
  layer_norm: bool = False  # normalises each example's outputs first

  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps `[N, ...]` to the same shape, within a Flax module."""
    if self.layer_norm:
      axes = tuple(range(1, x.ndim))
      x = nn.LayerNorm(reduction_axes=axes, dtype=x.dtype)(x)
    return getattr(nn, self.name)(x)


class MLP(nn.Module):
  """Dense layers on the flattened input."""

  sizes: Sequence[int]  # units per layer
  activation: Activation = Activation()
  dtype: jax.typing.DTypeLike = jnp.float32  # of the computation

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps `[N, ...]` to `[N, sizes[-1]]`."""
    x = x.reshape((x.shape[0], -1))
    for size in self.sizes:
      dense = nn.Dense(size, dtype=self.dtype, kernel_init=RELU_INIT)
      x = self.activation(dense(x))
    if self.sizes and self.activation.name == 'relu':
      health.sow_units(self, x)
    return x


class Convolutional(nn.Module):
  """Convolutions without padding, then one dense layer."""

  layers: Sequence[ConvLayer]
  dense_size: int  # output units, F
  num_frames: int | None = None  # of the first layer, see StridedConv
  activation: Activation = Activation()
  dtype: jax.typing.DTypeLike = jnp.float32  # of the computation

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps an input of `block_conv.StridedConv` to `[N, F]`."""
    num_frames = self.num_frames
    for i, layer in enumerate(self.layers):
      layer_conv = StridedConv(layer, num_frames, self.dtype, name=f'conv_{i}')
      x = self.activation(layer_conv(x))
      num_frames = None
    # Keeps XLA from flattening the convolution together with its result, which
    # loses vector instructions on CPU.
    x = jax.lax.optimization_barrier(x)
    return MLP((self.dense_size,), self.activation, self.dtype)(x)


class Conv(nn.Module):
  """A 3x3 convolution; if `is_pooled`, max-pooling halves height and width.

  Adds the bias after pooling, with the same result: its gradient is a sum over
  a quarter of the pixels.
  """

  channels: int
  is_pooled: bool = False
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps `[N, H, W, C]` to `[N, H, W, channels]`, halves rounded up."""
    shape = (3, 3, x.shape[-1], self.channels)
    kernel = self.param(
      'kernel', nn.linear.default_kernel_init, shape, jnp.float32
    )
    bias = self.param('bias', nn.initializers.zeros, shape[-1:], jnp.float32)
    y = conv(x.astype(self.dtype), kernel.astype(self.dtype), padding='SAME')
    if self.is_pooled:
      y = nn.max_pool(y, (3, 3), strides=(2, 2), padding='SAME')
    return add_bias(y, bias)


class ResidualBlock(nn.Module):
  """Two 3x3 convolutions plus a skip connection, ReLU first."""

  channels: int
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps `[N, H, W, channels]` to the same shape."""
    y = x
    for _ in range(2):
      y = Conv(self.channels, dtype=self.dtype)(nn.relu(y))
    return x + y


class DeepResNet(nn.Module):
  """IMPALA's deep network (arXiv 1802.01561, figure 3, right)."""

  channels: Sequence[int]  # of each stack
  dense_size: int  # output units, F
  dtype: jax.typing.DTypeLike = jnp.float32  # of the computation

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps `[N, H, W, C]` to `[N, F]`."""
    for i, channels in enumerate(self.channels):
      x = Conv(channels, True, self.dtype, name=f'Conv_{i}')(x)
      for _ in range(2):
        x = ResidualBlock(channels, self.dtype)(x)
    return MLP((self.dense_size,), dtype=self.dtype)(nn.relu(x))


class _Outside(nn.Module):
  """A torso by a function that maps `config.network` to a Flax module."""

  config: types.Config

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps `[N, ...]` to `[N, F]`."""
    flag = f'--config.network.torso={self.config.torso}'
    torso = settings.load_function(flag, self.config.torso)(self.config)
    if not isinstance(torso, nn.Module):
      raise ValueError(
        f'{flag}: must return a Flax module, not {type(torso).__name__}.'
      )
    features = torso(x)
    if features.ndim != 2 or len(features) != len(x):
      raise ValueError(
        f'{flag}: must map {x.shape} to ({len(x)}, F), not to {features.shape}.'
      )
    return features


def resolve_torso(name: str, shape: tuple[int, ...]) -> str:
  """Returns the torso for a leaf of `shape`, channels last.

  'auto' takes 'shallow' for images with both sides >= 32, 'grid' for smaller
  ones with both sides >= 5, 'mlp' otherwise. A named convolution applies to
  images (`observations.make_leaf`); other leaves get 'mlp'. `module:function`
  gets every leaf.

  Raises ValueError if the image is too small for the torso.
  """
  if ':' in name:
    return name
  if len(shape) != 3 or name == 'mlp':
    return 'mlp'
  if name != 'auto':
    smallest = _smallest_side(name)
    if min(shape[:2]) < smallest:
      raise ValueError(
        f'--config.network.torso={name} needs images of at least {smallest} '
        f"pixels a side, and this one is {shape[0]}x{shape[1]}; take 'auto'."
      )
    return name
  if is_picture(shape):
    return 'shallow'
  return 'grid' if min(shape[:2]) >= _smallest_side('grid') else 'mlp'


def strided_layer(torso: str) -> ConvLayer | None:
  """Returns the first convolution if it takes blocks of pixels, else None."""
  if torso not in CONV_TORSOS:
    return None
  layer = CONV_TORSOS[torso].layers[0]
  return layer if layer.stride > 1 else None


def make_torso(
  config: types.Config,
  shape: tuple[int, ...],
  num_frames: int | None = None,
  name: str | None = None,
) -> nn.Module:
  """Makes the torso of a leaf of `shape`, channels last, by `config.network`.

  `num_frames` is k if the input is blocks of k frames; None if it has `shape`.
  Raises ValueError; see `resolve_torso`.
  """
  dtype = jnp.dtype(config.compute_dtype)
  torso = resolve_torso(config.torso, shape)
  if ':' in torso:
    return _Outside(config, name=name)
  activation = Activation(config.activation, config.layer_norm)
  if torso == 'mlp':
    return MLP(tuple(config.hidden_sizes), activation, dtype, name=name)
  if torso == 'resnet':
    if activation != Activation():
      raise ValueError(
        '--config.network.torso=resnet has ReLU without layer norm; take '
        'another torso, or give --config.network.activation=relu '
        '--config.network.layer_norm=False.'
      )
    channels = tuple(c * config.width for c in config.resnet_channels)
    return DeepResNet(channels, config.dense_size or 256, dtype, name=name)
  layers, dense_size = CONV_TORSOS[torso]
  size = config.dense_size or dense_size
  return Convolutional(layers, size, num_frames, activation, dtype, name=name)


def _smallest_side(name: str) -> int:
  side = 1
  if name in CONV_TORSOS:
    for layer in reversed(CONV_TORSOS[name].layers):
      side = (side - 1) * layer.stride + layer.kernel
  return side
