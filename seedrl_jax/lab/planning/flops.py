"""Counts the floating-point operations of a function's products."""

import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.extend import core


def flops(jaxpr: core.Jaxpr, platform: str, least_bytes: int = 0) -> int:
  """Returns the operations of matrix products and convolutions, per device.

  A multiplication with its addition counts two, and a loop's body as often as
  it runs. Element-wise operations, a small share of a network's, do not count,
  nor do products of numbers of fewer than `least_bytes` bytes.
  """
  return sum(_equation_flops(x, platform, least_bytes) for x in jaxpr.eqns)


def _equation_flops(
  equation: core.JaxprEqn, platform: str, least_bytes: int
) -> int:
  name, params = equation.primitive.name, equation.params
  if name in ('dot_general', 'conv_general_dilated'):
    factor: Any = equation.invars[0].aval
    if factor.dtype.itemsize < least_bytes:
      return 0
  if name == 'dot_general':
    ((contracted, _), _) = params['dimension_numbers']
    (left, _), result = _shapes(equation)
    depth = math.prod(left[i] for i in contracted)
    return 2 * math.prod(result) * depth
  if name == 'conv_general_dilated':
    return _convolution_flops(equation)
  inner = [flops(x, platform, least_bytes) for x in _inner_jaxprs(params)]
  if platforms := params.get('branches_platforms'):
    # A choice by platform; None is for all others.
    named = [
      i for i, names in enumerate(platforms) if platform in (names or ())
    ]
    return inner[named[0] if named else platforms.index(None)]
  if name == 'cond':
    return max(inner)
  return sum(inner) * params.get('length', 1)


def _shapes(equation: core.JaxprEqn) -> tuple[list[Any], Any]:
  """Returns the shapes of an equation's operands and of its result."""
  operands: list[Any] = [x.aval for x in equation.invars]
  result: Any = equation.outvars[0].aval
  return [x.shape for x in operands], result.shape


def _inner_jaxprs(params: dict[str, Any]) -> Iterator[core.Jaxpr]:
  for leaf in jax.tree.leaves(
    list(params.values()), is_leaf=lambda x: hasattr(x, 'eqns')
  ):
    if isinstance(leaf, core.ClosedJaxpr):
      yield leaf.jaxpr
    elif isinstance(leaf, core.Jaxpr):
      yield leaf


def _convolution_flops(equation: core.JaxprEqn) -> int:
  """Counts products with input values only, neither padding nor dilation."""
  params = equation.params
  numbers = params['dimension_numbers']
  (image, kernel), result = _shapes(equation)
  positions = 1
  for i, (low, _) in enumerate(params['padding']):
    # Place of each kernel entry for each output position, in the dilated image.
    place = (
      np.arange(result[numbers.out_spec[2 + i]])[:, None]
      * params['window_strides'][i]
      + np.arange(kernel[numbers.rhs_spec[2 + i]]) * params['rhs_dilation'][i]
      - low
    )
    dilation = params['lhs_dilation'][i]
    last = (image[numbers.lhs_spec[2 + i]] - 1) * dilation
    inside = (place >= 0) & (place <= last) & (place % dilation == 0)
    positions *= int(inside.sum())
  out_features, in_features = (kernel[i] for i in numbers.rhs_spec[:2])
  examples = result[numbers.out_spec[0]]
  return 2 * examples * out_features * in_features * positions
