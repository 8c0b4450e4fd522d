"""SEED RL for JAX: deep reinforcement learning with central inference."""

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from seedrl_jax.api import (
    Report,
    StopAtReturn,
    StopWithoutImprovement,
    check_env,
    evaluate,
    load_policy,
    make_config,
    train,
  )

__version__ = '0.1.0'
__all__ = [
  'Report',
  'StopAtReturn',
  'StopWithoutImprovement',
  'check_env',
  'evaluate',
  'load_policy',
  'make_config',
  'train',
]

# Before NumPy and SciPy are imported: no threads of OpenBLAS's. It ends them
# before each fork and waits for them, which hangs if two threads fork at once,
# as EnvPool's do to start ViZDoom. Nothing here multiplies large matrices in
# NumPy.
os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')


def __getattr__(name: str) -> Any:
  """Imports the interface when it is first used."""
  if name not in __all__:
    raise AttributeError(f'module {__name__} has no attribute {name}')
  from seedrl_jax import api

  return getattr(api, name)


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
