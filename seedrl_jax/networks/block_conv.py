"""Strided convolutions as matrix products over blocks of pixels.

One product multiplies every block with the kernels of all window places and
stacked frames; shifted sums of the results give the convolution. Each frame is
read once: on a CPU, moving data dominates a small network's update.
"""

from collections.abc import Iterator
from typing import NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

# Preserves variance through a ReLU.
RELU_INIT = nn.initializers.orthogonal(np.sqrt(2.0))

# Products are written and read once more for the sum; beyond this many times
# the input size it does not pay.
_WIDEST = 2


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
  def __call__(self, x: jax.Array, same: jax.Array | None = None) -> jax.Array:
    """Convolves images, blocks of stacked frames, or blocks of single frames.

    Args:
      x: an image `[N, H, W, C]`; blocks of k frames of C channels,
        `[N, H / stride, W / stride, k * stride^2 * C]`, oldest frame first;
        with `same`, blocks of single frames
        `[T + k - 1, B, H / stride, W / stride, stride^2 * C]`.
      same: bool `[T, B, k]`, see `frame_stack.FrameHistory`; then N is T * B.

    Returns:
      `[N, H', W', layer.channels]`.
    """
    channels, size, stride = self.layer
    if self.num_frames is None:
      x = space_to_depth(x, self.layer)
    frames, span = self.num_frames or 1, size // stride
    delays = 1 if same is None else frames
    depth = x.shape[-1] * delays // stride**2
    kernel = self.param(
      'kernel', RELU_INIT, (size, size, depth, channels), jnp.float32
    )
    bias = self.param('bias', nn.initializers.zeros, (channels,), jnp.float32)
    # The ordinary kernel has frames innermost, beside channels; a block
    # outermost.
    kernel = kernel.reshape((span, stride, span, stride, frames, -1, channels))
    kernel = kernel.transpose((4, 0, 2, 1, 3, 5, 6)).astype(self.dtype)
    if same is None:
      kernel = jnp.moveaxis(kernel, 0, 2)
      x = x[None]
    kernel = kernel.reshape((delays, span, span, -1, channels))
    y = _window_conv(x.astype(self.dtype), kernel, same)
    return y.reshape((-1, *y.shape[2:])) + bias.astype(self.dtype)


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


def suits_single_frames(
  layer: ConvLayer, channels: int, num_frames: int, length: int
) -> bool:
  """Returns whether `StridedConv` is faster on single frames than on stacks.

  It multiplies all T + k - 1 frames with the kernels of all k delays: wasteful
  for a short unroll. `channels` are a frame's.
  """
  outputs = num_frames * (layer.kernel // layer.stride) ** 2 * layer.channels
  depth = layer.stride**2 * channels
  return outputs <= _WIDEST * depth and length >= num_frames


@jax.custom_vjp
def _window_conv(
  x: jax.Array, kernel: jax.Array, same: jax.Array | None
) -> jax.Array:
  """Convolves over time, rows and columns, with stride 1 and no padding.

  Maps x `[T + k - 1, B, H, W, D]` and kernel `[k, s, s, D, C]` to
  `[T, B, H - s + 1, W - s + 1, C]`. `same` is bool `[T, B, k]`, whether a delay
  counts at a step; None if k is 1.
  """
  depth, channels = kernel.shape[3:]
  length = x.shape[0] - kernel.shape[0] + 1
  if same is not None:
    chex.assert_shape(same, (length, x.shape[1], kernel.shape[0]))
  elif kernel.size // depth > _WIDEST * depth:
    return _conv(x[0], kernel[0])[None]
  wide = kernel.transpose((3, 0, 1, 2, 4)).reshape((depth, -1))
  # float32 whatever the compute dtype: a sum of rounded products would lose
  # bits that one product over the whole window keeps.
  y = jnp.matmul(
    x.reshape((-1, depth)), wide, preferred_element_type=jnp.float32
  )
  # Otherwise XLA moves the reshape behind the sum, which is slower on CPU.
  y = jax.lax.optimization_barrier(y.reshape((*x.shape[:-1], -1)))
  rows, columns = (n - kernel.shape[1] + 1 for n in x.shape[2:4])
  total = jnp.zeros((), y.dtype)
  for n, (t, i, j) in enumerate(_offsets(kernel)):
    part = y[t : t + length, :, i : i + rows, j : j + columns]
    part = part[..., n * channels : (n + 1) * channels]
    if same is not None:
      part = jnp.where(same[:, :, t, None, None, None], part, 0.0)
    total = total + part
  return total.astype(x.dtype)


def _conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
  """XLA's convolution of `[N, H, W, D]` with `[s, s, D, C]`."""
  return jax.lax.conv_general_dilated(
    x, kernel, (1, 1), 'VALID', dimension_numbers=('NHWC', 'HWIO', 'NHWC')
  )


def _offsets(kernel: jax.Array) -> Iterator[tuple[int, ...]]:
  """Yields time, row and column of each place of the window."""
  return np.ndindex(kernel.shape[:3])


def _window_conv_forward(
  x: jax.Array, kernel: jax.Array, same: jax.Array | None
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array | None]]:
  return _window_conv(x, kernel, same), (x, kernel, same)


def _window_conv_backward(
  residuals: tuple[jax.Array, jax.Array, jax.Array | None], grad: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
  """Multiplies with the gradient of every place's product, `[k s s C, n]`.

  Positions come last: on CPU, rows of few channels are slow to pad and join.
  """
  x, kernel, same = residuals
  delays, span, _, depth, channels = kernel.shape
  flat = jax.lax.optimization_barrier(grad.reshape((-1, channels)).T)
  flat = flat.reshape((channels, *grad.shape[:-1]))
  parts = []
  for t, i, j in _offsets(kernel):
    part = flat
    if same is not None:
      part = jnp.where(same[:, :, t, None, None], part, 0)
    after = delays - 1 - t, span - 1 - i, span - 1 - j
    padding = ((0, 0), (t, after[0]), (0, 0), (i, after[1]), (j, after[2]))
    parts.append(jnp.pad(part, padding))
  wide = jnp.concatenate(parts).reshape((len(parts) * channels, -1))
  wide = jax.lax.optimization_barrier(wide)
  kernel_grad = jax.lax.optimization_barrier(wide @ x.reshape((-1, depth)))
  kernel_grad = kernel_grad.reshape((delays, span, span, channels, depth))
  kernel_grad = kernel_grad.swapaxes(-1, -2)
  x_grad = wide.T @ kernel.swapaxes(-1, -2).reshape((-1, depth))
  return x_grad.reshape(x.shape), kernel_grad, None


_window_conv.defvjp(_window_conv_forward, _window_conv_backward)
