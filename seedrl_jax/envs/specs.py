"""Specs of observations and actions, common to both kinds of local stream."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_collections
import numpy as np
from gymnasium import spaces

from seedrl_jax import types
from seedrl_jax.envs import base
from seedrl_jax.runtime import nest as nest_lib

# Devices compute in 32 bits; other dtypes stay as they are.
_NARROWED = {
  np.dtype(np.float64): np.dtype(np.float32),
  np.dtype(np.int64): np.dtype(np.int32),
}


def array_spec(shape: tuple[int, ...], dtype: Any) -> types.ArraySpec:
  """Returns the spec of an environment's array as agents get it."""
  dtype = np.dtype(dtype)
  return types.ArraySpec(tuple(shape), _NARROWED.get(dtype, dtype))


def map_nest(function: Callable[[Any], Any], nest: types.Nest) -> types.Nest:
  """Applies a function to the leaves of a nest of dicts."""
  if isinstance(nest, dict):
    return {key: map_nest(function, value) for key, value in nest.items()}
  return function(nest)


def keep_keys(
  config: ml_collections.ConfigDict, nest: types.Nest
) -> types.Nest:
  """Returns `nest` without its outermost keys that the config drops.

  All its dicts become sorted dicts.

  Raises:
    ValueError: if nothing is left.
  """
  dropped = config.drop_observations
  if not isinstance(nest, Mapping):
    return nest
  kept = {k: _sorted(nest[k]) for k in sorted(nest) if k not in dropped}
  if not kept:
    raise ValueError(
      f'--config.env.drop_observations={tuple(dropped)}: nothing is left of '
      f'the observation, which has {", ".join(sorted(nest))}.'
    )
  return kept


def joined_spec(spec: base.StreamSpec) -> base.StreamSpec:
  """Returns an environment's spec with the observation as agents get it.

  A dict of nothing but floats and vectors of floats becomes one vector, in the
  order of sorted keys; other observations stay as they are.
  """
  leaves = nest_lib.flatten(spec.observation)
  if not isinstance(spec.observation, dict) or any(
    leaf.dtype.kind != 'f' or len(leaf.shape) > 1 for leaf in leaves
  ):
    return spec
  size = sum(math.prod(leaf.shape) for leaf in leaves)
  vector = types.ArraySpec((size,), np.dtype(np.float32))
  return spec._replace(observation=vector, parts=spec.observation)


def join(leaves: Sequence[np.ndarray]) -> np.ndarray:
  """Returns arrays `[B]` or `[B, n]` as one, float32 `[B, N]`."""
  vectors = [x.reshape(len(x), -1) for x in leaves]
  return np.concatenate(vectors, axis=1, dtype=np.float32)


def _sorted(nest: types.Nest) -> types.Nest:
  if not isinstance(nest, Mapping):
    return nest
  return {key: _sorted(nest[key]) for key in sorted(nest)}


def action_spec(space: spaces.Space, flag: str) -> types.ActionSpec:
  """Returns the `ActionSpec` of an action space.

  Raises:
    ValueError: if it is not Discrete, MultiDiscrete, MultiBinary or Box.
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
  """Returns a box's bound; what float32 cannot hold becomes 0 or infinite."""
  # ViZDoom's buttons range from the least positive float64 to the largest.
  with np.errstate(over='ignore', under='ignore'):
    narrow = values.astype(np.float32)
  return np.where(np.isfinite(narrow) & (narrow != 0), values, narrow)
