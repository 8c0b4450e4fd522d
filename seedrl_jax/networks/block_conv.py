"""Strided convolutions over blocks of pixels.

On a CPU, moving data dominates a small network's update. Blocks of bytes are
cut out of single frames, before they are stacked and become floats: a fifth of
the update's CPU time with IMPALA's shallow torso, half with the tiny one,
measured by alternating `_window_conv` with plain convolutions. An accelerator
takes the blocks of bytes, whose many channels suit it, but else XLA's own
convolution: `_window_conv` would move seven times the bytes on a TPU v5e.
"""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

# Preserves variance through a ReLU.
RELU_INIT = nn.initializers.orthogonal(np.sqrt(2.0))

# The products of `_window_conv` are written and read once more for the sum;
# beyond this many times the input size it does not pay.
_WIDEST = 2

_in_loop = contextvars.ContextVar('in_loop', default=False)


@contextlib.contextmanager
def for_loops() -> Iterator[None]:
  """A `StridedConv` traced within this context is fast in a loop, too.

  XLA's CPU backend runs a convolution in a loop 10 to 20 times slower than
  outside. There, `StridedConv` takes products, which are not.
  """
  token = _in_loop.set(True)
  try:
    yield
  finally:
    _in_loop.reset(token)


class ConvLayer(NamedTuple):
  """A square convolution without padding."""

  channels: int
  kernel: int
  stride: int


class StridedConv(nn.Module):
  """A square convolution without padding over blocks of pixels.

  Blocks of `stride x stride` pixels become channels (`space_to_depth`), on
  which the convolution has stride 1. Function and parameters equal those of the
  ordinary convolution of stacked images.
  """

  layer: ConvLayer  # kernel: a multiple of the stride
  num_frames: int | None = None  # frames per stack; None: input is an image
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Convolves to `[N, H', W', layer.channels]`.

    `x` is an image `[N, H, W, C]`, or blocks of k frames of C channels,
    `[N, H / stride, W / stride, k * stride^2 * C]`, oldest frame first.
    """
    channels, size, stride = self.layer
    frames = self.num_frames or 1
    depth = x.shape[-1]
    if self.num_frames is not None:
      depth //= stride**2
    kernel = self.param(
      'kernel', RELU_INIT, (size, size, depth, channels), jnp.float32
    )
    bias = self.param('bias', nn.initializers.zeros, (channels,), jnp.float32)
    x = x.astype(self.dtype)
    in_loop = _in_loop.get()

    def blocks(x: jax.Array, kernel: jax.Array) -> jax.Array:
      if self.num_frames is None:
        x = space_to_depth(x, self.layer)
      kernel = _block_kernel(kernel, stride, frames).astype(self.dtype)
      span = size // stride
      too_wide = span**2 * channels > _WIDEST * x.shape[-1]
      return (conv if too_wide and not in_loop else _window_conv)(x, kernel)

    def whole(x: jax.Array, kernel: jax.Array) -> jax.Array:
      if self.num_frames is None:
        return conv(x, kernel.astype(self.dtype), stride)
      return conv(x, _block_kernel(kernel, stride, frames).astype(self.dtype))

    y = jax.lax.platform_dependent(x, kernel, cpu=blocks, default=whole)
    return add_bias(y, bias)


def add_bias(y: jax.Array, bias: jax.Array) -> jax.Array:
  """Adds a float32 bias in float32; returns the dtype of `y`, `[..., C]`.

  Its gradient is a sum over all pixels, which bfloat16 would lose.
  """
  return (y.astype(jnp.float32) + bias).astype(y.dtype)


def _block_kernel(kernel: jax.Array, stride: int, frames: int) -> jax.Array:
  """Maps a kernel `[s, s, k * C, F]` to that of blocks of k frames."""
  size, _, _, channels = kernel.shape
  span = size // stride
  # The ordinary kernel has frames innermost, beside channels; a block
  # outermost.
  kernel = kernel.reshape((span, stride, span, stride, frames, -1, channels))
  kernel = kernel.transpose((0, 2, 4, 1, 3, 5, 6))
  return kernel.reshape((span, span, -1, channels))


def space_to_depth(x: jax.Array, layer: ConvLayer) -> jax.Array:
  """Maps `[..., H, W, C]` to blocks for `layer`, `[..., H', W', stride^2 C]`.

  Cuts off pixels that no window reaches.
  """
  *leading, height, width, depth = x.shape
  _, size, stride = layer
  rows = (height - size) // stride + size // stride
  columns = (width - size) // stride + size // stride
  x = x[..., : rows * stride, : columns * stride, :]
  # A block's row is one axis: on CPU fewer axes transpose faster.
  x = x.reshape((-1, rows, stride, columns, stride * depth))
  x = x.transpose((0, 1, 3, 2, 4))
  return x.reshape((*leading, rows, columns, -1))


def conv(
  x: jax.Array, kernel: jax.Array, stride: int = 1, padding: str = 'VALID'
) -> jax.Array:
  """Convolves `[N, H, W, D]` with `[s, s, D, C]`."""
  layout = ('NHWC', 'HWIO', 'NHWC')
  return jax.lax.conv_general_dilated(
    x, kernel, (stride, stride), padding, dimension_numbers=layout
  )


@jax.custom_vjp
def _window_conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
  """Convolves `[N, H, W, D]` with `[s, s, D, C]`, with stride 1, no padding.

  One product multiplies every block with the kernels of all window places;
  shifted sums of the results give the convolution. Beside XLA's on a CPU, it
  takes half the time if s is 1, and 5 to 9 % less with the shallow torso.
  """
  span, _, depth, channels = kernel.shape
  wide = kernel.transpose((2, 0, 1, 3)).reshape((depth, -1))
  # float32 whatever the compute dtype: a sum of rounded products would lose
  # bits that one product over the whole window keeps. Without the barrier, XLA
  # would reorder for worse.
  y = jnp.matmul(
    x.reshape((-1, depth)), wide, preferred_element_type=jnp.float32
  )
  y = jax.lax.optimization_barrier(y.reshape((*x.shape[:-1], -1)))
  rows, columns = (n - span + 1 for n in x.shape[1:3])
  total = jnp.zeros((), y.dtype)
  for n, (i, j) in enumerate(np.ndindex((span, span))):
    part = y[:, i : i + rows, j : j + columns]
    total = total + part[..., n * channels : (n + 1) * channels]
  return total.astype(x.dtype)


def _window_conv_backward(
  residuals: tuple[jax.Array, jax.Array], grad: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Multiplies with the gradient of every place's product, `[s s C, n]`.

  Positions come last: on CPU, rows of few channels are slow to pad and join.
  """
  x, kernel = residuals
  span, _, depth, channels = kernel.shape
  flat = jax.lax.optimization_barrier(grad.reshape((-1, channels)).T)
  flat = flat.reshape((channels, *grad.shape[:-1]))
  parts = []
  for i, j in np.ndindex((span, span)):
    padding = ((0, 0), (0, 0), (i, span - 1 - i), (j, span - 1 - j))
    parts.append(jnp.pad(flat, padding))
  wide = jnp.concatenate(parts).reshape((len(parts) * channels, -1))
  wide = jax.lax.optimization_barrier(wide)
  kernel_grad = jax.lax.optimization_barrier(wide @ x.reshape((-1, depth)))
  kernel_grad = kernel_grad.reshape((span, span, channels, depth))
  x_grad = wide.T @ kernel.swapaxes(-1, -2).reshape((-1, depth))
  return x_grad.reshape(x.shape), kernel_grad.swapaxes(-1, -2)


_window_conv.defvjp(
  lambda x, kernel: (_window_conv(x, kernel), (x, kernel)),
  _window_conv_backward,
)
