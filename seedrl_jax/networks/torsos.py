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
  """A square convolution without padding over blocks of pixels.

  Blocks of `stride x stride` pixels become channels (`space_to_depth`), on
  which the convolution has stride 1. Function and parameters are those of the
  ordinary convolution. XLA's CPU backend is slow at gradients of a strided
  convolution; see `_block_conv` for what it is quick at.

  Attributes:
    layer: the convolution; its kernel must be a multiple of its stride.
    num_frames: None where the input is an image; k where it is the blocks of
      k stacked frames, each brought into blocks before they were stacked.
    dtype: of the computation; parameters are float32.
  """

  layer: ConvLayer
  num_frames: int | None = None
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps an image `[N, H, W, C]` to `[N, H', W', layer.channels]`.

    Blocks of k frames of C channels are
    `[N, H / stride, W / stride, k * stride^2 * C]`, oldest frame first.
    """
    channels, size, stride = self.layer
    if self.num_frames is None:
      x = space_to_depth(x, self.layer)
    frames, span = self.num_frames or 1, size // stride
    depth = x.shape[-1] // stride**2
    kernel = self.param(
      'kernel', _RELU_INIT, (size, size, depth, channels), jnp.float32
    )
    bias = self.param('bias', nn.initializers.zeros, (channels,), jnp.float32)
    # The ordinary kernel has frames beside channels, innermost; a block has
    # them outermost.
    kernel = kernel.reshape((span, stride, span, stride, frames, -1, channels))
    kernel = kernel.transpose((0, 2, 4, 1, 3, 5, 6)).astype(self.dtype)
    kernel = kernel.reshape((span, span, -1, channels))
    return _block_conv(x.astype(self.dtype), kernel) + bias.astype(self.dtype)


class Convolutional(nn.Module):
  """Convolutions without padding, then one dense layer, all ReLU.

  Attributes:
    layers: the convolutions.
    dense_size: output units, F.
    num_frames: of the first layer, see `StridedConv`.
    dtype: of the computation; parameters are float32.
  """

  layers: Sequence[ConvLayer]
  dense_size: int
  num_frames: int | None = None
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps `[N, H, W, C]`, or blocks of it, to `[N, F]`."""
    num_frames = self.num_frames
    for i, layer in enumerate(self.layers):
      conv = StridedConv(layer, num_frames, self.dtype, name=f'conv_{i}')
      x, num_frames = nn.relu(conv(x)), None
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
    raise ValueError(f'--config.network.torso={name}: choose one of {TORSOS}.')
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
  if preprocessing.is_picture(shape):
    return 'shallow'
  return 'grid' if min(shape[:2]) >= _smallest_side('grid') else 'mlp'


def first_strided_layer(
  config: Any, shape: tuple[int, ...]
) -> ConvLayer | None:
  """Returns the convolution that takes blocks of frames, or None.

  Only pictures are brought into blocks: smaller images gain channels between
  stacking and the torso (`preprocessing.to_features`).

  Args:
    config: `config.network`.
    shape: of the leaf, without batch dimensions, channels last.
  """
  torso = resolve_torso(config.torso, shape)
  if torso not in CONV_TORSOS or not preprocessing.is_picture(shape):
    return None
  layer = CONV_TORSOS[torso].layers[0]
  return layer if layer.stride > 1 else None


def make_torso(
  config: Any,
  shape: tuple[int, ...],
  num_frames: int | None = None,
  name: str | None = None,
) -> nn.Module:
  """Makes the torso of one observation leaf.

  Args:
    config: `config.network`.
    shape: of the leaf, without batch dimensions, channels last.
    num_frames: k where the input will be blocks for `first_strided_layer`, of
      k stacked frames; None where it will be of `shape`.
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
  size = config.dense_size or size
  return Convolutional(layers, size, num_frames, dtype, name=name)


def space_to_depth(x: jax.Array, layer: ConvLayer) -> jax.Array:
  """Maps `[..., H, W, C]` to blocks for `layer`, `[..., H', W', stride^2 C]`.

  Pixels that no window of the convolution reaches are cut off first.
  """
  *leading, height, width, depth = x.shape
  _, size, stride = layer
  rows = (height - size) // stride + size // stride
  columns = (width - size) // stride + size // stride
  x = x[..., : rows * stride, : columns * stride, :]
  # A block's row is one axis of stride * depth numbers: on CPU the fewer the
  # axes, the quicker the transposition.
  x = x.reshape((-1, rows, stride, columns, stride * depth))
  x = x.transpose((0, 1, 3, 2, 4))
  return x.reshape((*leading, rows, columns, -1))


@jax.custom_vjp
def _block_conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
  """Convolves `[N, H, W, C]` with `[s, s, C, C']`, stride 1, no padding.

  XLA's CPU backend is quick at such a convolution and at the gradient of its
  input, which is another one. It is not at the kernel's, a convolution with a
  window as large as the image; that is s^2 matrix products here.
  """
  if kernel.shape[:2] == (1, 1):
    return x @ kernel[0, 0]
  return jax.lax.conv_general_dilated(
    x, kernel, (1, 1), 'VALID', dimension_numbers=('NHWC', 'HWIO', 'NHWC')
  )


def _block_conv_forward(
  x: jax.Array, kernel: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
  return _block_conv(x, kernel), (x, kernel)


def _block_conv_backward(
  residuals: tuple[jax.Array, jax.Array], grad: jax.Array
) -> tuple[jax.Array, jax.Array]:
  x, kernel = residuals
  _, input_vjp = jax.vjp(lambda x: _block_conv.fun(x, kernel), x)
  rows, columns, channels = grad.shape[1:]
  flat = grad.reshape((-1, channels))

  def product(i: int, j: int) -> jax.Array:
    window = x[:, i : i + rows, j : j + columns]
    # The narrow matrix first, which is several times quicker; the barrier
    # keeps XLA from folding the transposition into the other order.
    narrow = flat.T @ window.reshape((-1, x.shape[-1]))
    return jax.lax.optimization_barrier(narrow).T

  span = kernel.shape[0]
  kernel_grad = jnp.stack([
    product(i, j) for i in range(span) for j in range(span)
  ])
  return *input_vjp(grad), kernel_grad.reshape(kernel.shape)


_block_conv.defvjp(_block_conv_forward, _block_conv_backward)


def _smallest_side(name: str) -> int:
  """Returns the least height and width that leave one output cell."""
  side = 1
  if name in CONV_TORSOS:
    for layer in reversed(CONV_TORSOS[name].layers):
      side = (side - 1) * layer.stride + layer.kernel
  return side
