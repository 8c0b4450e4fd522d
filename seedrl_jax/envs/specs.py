"""What an agent is told of observations and actions.

Both kinds of local stream agree here on dtypes, on the order of a dict's keys
and on what is refused.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from seedrl_jax import types

# Devices compute in 32 bits; everything else reaches them as it is.
_NARROWED = {
  np.dtype(np.float64): np.dtype(np.float32),
  np.dtype(np.int64): np.dtype(np.int32),
}


def agent_dtype(dtype: Any) -> np.dtype:
  """Returns the dtype in which an agent gets observations of `dtype`."""
  dtype = np.dtype(dtype)
  return _NARROWED.get(dtype, dtype)


def map_nest(function: Callable[[Any], Any], nest: types.Nest) -> types.Nest:
  """Returns `nest`, dicts of anything, with `function` applied to its leaves.

  The twin of `jax.tree.map` where there is no JAX.
  """
  if isinstance(nest, dict):
    return {key: map_nest(function, value) for key, value in nest.items()}
  return function(nest)


def leaves(nest: types.Nest) -> Iterator[Any]:
  """Gives the leaves of `nest`, dicts of anything."""
  if isinstance(nest, dict):
    for value in nest.values():
      yield from leaves(value)
  else:
    yield nest


def drop_keys(nest: types.Nest, dropped: Collection[str]) -> types.Nest:
  """Returns `nest` without the dropped keys, its dicts sorted by key.

  Args:
    nest: mappings of anything; only the outermost loses keys.
    dropped: keys of a dict observation; those it does not have are ignored.

  Raises:
    ValueError: if nothing would be left.
  """
  if not isinstance(nest, Mapping):
    return nest
  kept = {k: drop_keys(nest[k], ()) for k in sorted(nest) if k not in dropped}
  if not kept:
    raise ValueError(
      f'--config.env.drop_observations={tuple(dropped)}: nothing is left of '
      f'the observation, which has {", ".join(sorted(nest))}.'
    )
  return kept


def check_dropped(dropped: Any) -> tuple[str, ...]:
  """Returns the keys to drop; a lone string would be read as its letters.

  Raises:
    ValueError: if it is no sequence of strings.
  """
  if isinstance(dropped, str):
    raise ValueError(
      f'--config.env.drop_observations={dropped}: must be a tuple of strings, '
      f"such as ('{dropped}',)."
    )
  return tuple(dropped)


def action_spec(space: spaces.Space, flag: str) -> types.ActionSpec:
  """Returns what agents are told of an action space.

  Args:
    space: `Discrete`, or several numbers at once: `MultiDiscrete`,
      `MultiBinary` or `Box`.
    flag: that named the environment, with its value.

  Raises:
    ValueError: if it is another.
  """
  match space:
    case spaces.Discrete():
      low, high = space.start, space.start + space.n - 1
    case spaces.MultiDiscrete():
      low, high = space.start, space.start + space.nvec - 1
    case spaces.MultiBinary():
      low, high = np.zeros(space.shape), np.ones(space.shape)
    case spaces.Box():
      low, high = _bound(space.low), _bound(space.high)
    case _:
      raise ValueError(
        f'{flag}: actions must be one array of numbers, not '
        f'{type(space).__name__}; choose an environment with others, or wrap '
        'it.'
      )
  is_float = np.issubdtype(space.dtype, np.floating)
  return types.ActionSpec(
    np.shape(low),
    np.dtype(np.float32 if is_float else np.int32),
    tuple(np.ravel(low).tolist()),
    tuple(np.ravel(high).tolist()),
  )


def _bound(values: np.ndarray) -> np.ndarray:
  """Returns a box's bound; what float32 cannot hold is 0 or none."""
  # ViZDoom's buttons go from the least float64 above 0 to the largest.
  with np.errstate(over='ignore', under='ignore'):
    narrow = values.astype(np.float32)
  return np.where(np.isfinite(narrow) & (narrow != 0), values, narrow)
