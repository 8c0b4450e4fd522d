"""Compares counted FLOPs of products and convolutions with XLA's."""

import jax
import jax.numpy as jnp
import pytest

from seedrl_jax.lab.planning import flops

_MATRIX = jax.ShapeDtypeStruct((4, 8), jnp.float32)
_SQUARE = jax.ShapeDtypeStruct((8, 8), jnp.float32)
_IMAGES = jax.ShapeDtypeStruct((3, 13, 12, 5), jnp.float32)
_KERNEL = jax.ShapeDtypeStruct((4, 3, 5, 6), jnp.float32)


def _xla(function, *shapes):
  return jax.jit(function).lower(*shapes).cost_analysis()['flops']


def _count(function, *shapes, platform='cpu'):
  return flops.flops(jax.make_jaxpr(function)(*shapes).jaxpr, platform)


def _convolution(stride, padding):
  def convolve(x, kernel):
    return jax.lax.conv_general_dilated(
      x,
      kernel,
      (stride, stride),
      padding,
      dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
    )

  return convolve


def test_products_of_small_numbers_can_be_left_out():
  def both(x, y, image, kernel):
    half = jnp.bfloat16
    convolve = _convolution(1, 'VALID')
    product = x @ y, x.astype(half) @ y.astype(half)
    convolved = convolve(image.astype(half), kernel.astype(half))
    return product, convolved, convolve(image, kernel)

  shapes = _MATRIX, _SQUARE, _IMAGES, _KERNEL
  jaxpr = jax.make_jaxpr(both)(*shapes).jaxpr
  total = flops.flops(jaxpr, 'gpu')
  assert flops.flops(jaxpr, 'gpu', least_bytes=4) == total / 2


@pytest.mark.parametrize('stride', [1, 2])
@pytest.mark.parametrize('padding', ['VALID', 'SAME'])
def test_convolutions_and_their_gradients_count_as_xla_counts(stride, padding):
  convolve = _convolution(stride, padding)
  forward = _count(convolve, _IMAGES, _KERNEL)
  assert forward == _xla(convolve, _IMAGES, _KERNEL)

  def backward(x, kernel, y):
    return jax.vjp(convolve, x, kernel)[1](y)

  result = jax.eval_shape(convolve, _IMAGES, _KERNEL)
  # The jaxpr has the forward pass, too, which XLA drops here.
  backward_flops = _count(backward, _IMAGES, _KERNEL, result) - forward
  assert backward_flops == _xla(backward, _IMAGES, _KERNEL, result)


def test_products_count_twice_and_loops_as_often_as_they_run():
  def product(x, y):
    return x @ y

  def loop(x, y):
    return jax.lax.scan(lambda c, _: (c @ y, None), x, None, length=7)[0]

  def branch(x, y):
    return jax.lax.cond(x[0, 0] > 0, lambda: x @ y, lambda: x @ y @ y)

  once = _xla(product, _MATRIX, _SQUARE)
  assert _count(product, _MATRIX, _SQUARE) == once == 2 * 4 * 8 * 8
  assert _count(jax.jit(loop), _MATRIX, _SQUARE) == 7 * once
  assert _count(branch, _MATRIX, _SQUARE) == 2 * once


@pytest.mark.parametrize(
  ('platform', 'products'), [('cpu', 1), ('tpu', 2), ('cuda', 3)]
)
def test_of_branches_by_platform_only_one_counts(platform, products):
  def choose(x, y):
    return jax.lax.platform_dependent(
      x,
      y,
      cpu=lambda x, y: x @ y,
      tpu=lambda x, y: x @ y @ y,
      default=lambda x, y: x @ y @ y @ y,
    )

  flops_of_branch = _count(choose, _MATRIX, _SQUARE, platform=platform)
  assert flops_of_branch == products * 2 * 4 * 8 * 8


def test_a_pmapped_function_counts_per_device():
  devices = jax.devices()[:2]
  product = jax.pmap(lambda x, y: x @ y, devices=devices)
  shapes = [
    jax.ShapeDtypeStruct((2, *s.shape), s.dtype) for s in (_MATRIX, _SQUARE)
  ]
  assert _count(product, *shapes) == 2 * 4 * 8 * 8
