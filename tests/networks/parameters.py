"""Random parameters for tests, drawn by NumPy.

Compiling a module's own `init` takes many times as long as the module.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def draw(init: Callable[..., Any], *args: Any, seed: int = 0) -> Any:
  """Returns random normal numbers shaped like `init(*args)`.

  Matrices preserve the scale of their inputs; biases are not zero.
  """
  rng = np.random.default_rng(seed)

  def leaf(spec: jax.ShapeDtypeStruct) -> np.ndarray:
    fan_in = np.prod(spec.shape[:-1])
    return (rng.normal(size=spec.shape) / np.sqrt(fan_in)).astype(spec.dtype)

  return jax.tree.map(leaf, jax.eval_shape(init, *args))
