"""Specs of observations and actions, common to both kinds of local stream."""

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from seedrl_jax import types
from seedrl_jax.envs import action_masks, step_checks
from seedrl_jax.runtime import nest as nest_lib

_INT32 = np.iinfo(np.int32)


def array_spec(
  shape: tuple[int, ...],
  dtype: Any,
  low: Any = 0,
  high: Any = 0,
  flag: str = '',
  is_choice: bool = False,
) -> types.ArraySpec:
  """Returns the spec of an environment's array as agents get it.

  Devices compute in 32 bits. 64-bit integers become float32, with a warning
  that names `flag`, if their bounds exceed 32 bits. `is_choice` makes integers
  choices from `low` to `high`.
  """
  dtype = np.dtype(dtype)
  if dtype == np.float64:
    dtype = np.dtype(np.float32)
  elif dtype.kind in 'iu' and dtype.itemsize == 8:
    fits = np.min(low) >= _INT32.min and np.max(high) <= _INT32.max
    dtype = np.dtype(np.int32 if fits else np.float32)
    if not fits:
      action_masks.warn_once(
        f'{flag}: observes integers whose bounds exceed 32 bits; the agent '
        'gets them as float32, with 7 digits. Scale them in the environment, '
        'or give bounds.'
      )
  categories: tuple[range, ...] = ()
  if is_choice and dtype.kind in 'iu':
    pairs = zip(np.ravel(low).tolist(), np.ravel(high).tolist(), strict=True)
    categories = tuple(range(first, last + 1) for first, last in pairs)
  return types.ArraySpec(tuple(shape), dtype, categories)


def observation_spec(
  space: spaces.Space, flag: str, dropped: Collection[str] = ()
) -> types.Nest:
  """Returns the spec of an observation without the keys `dropped`.

  Raises ValueError; see `space_spec` and `keep_keys`.
  """
  nest = keep_keys(dropped, space)
  leaves = nest_lib.flatten_with_paths(nest)
  return nest_lib.unflatten(nest, [space_spec(x, flag, k) for k, x in leaves])


def space_spec(
  space: spaces.Space, flag: str, key: str = ''
) -> types.ArraySpec:
  """Returns the spec of an observation's array.

  Raises:
    ValueError: if the space is not of arrays, or they are empty; names `flag`.
  """
  if 0 in (space.shape or ()):
    name = f' {key!r}' if key else ''
    raise ValueError(
      f'{flag}: the observation{name} of shape {space.shape} is empty; omit '
      'it (--config.env.drop_observations), or give it a number.'
    )
  if space.shape is None or space.dtype is None:
    raise ValueError(
      f'{flag}: observations must be arrays or dicts of arrays, not '
      f'{type(space).__name__}.'
    )
  low, high = _bounds(space) or (0, 0)
  is_choice = isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
  return array_spec(space.shape, space.dtype, low, high, flag, is_choice)


def _bounds(space: spaces.Space) -> tuple[Any, Any] | None:
  """Returns least and largest numbers; None for other kinds of spaces."""
  match space:
    case spaces.Discrete():
      return int(space.start), int(space.start) + int(space.n) - 1
    case spaces.MultiDiscrete():
      return space.start, space.start + space.nvec - 1
    case spaces.MultiBinary():
      return np.zeros(space.shape), np.ones(space.shape)
    case spaces.Box():
      return space.low, space.high
  return None


def find_bounds(
  space: spaces.Space, dtype: np.dtype, key: str = ''
) -> step_checks.Bounds | None:
  """Returns the bounds of arrays of a space; None if there are none to check.

  Only a Box and spaces of choices have them.
  """
  bounds = _bounds(space)
  if bounds is None or isinstance(space, spaces.MultiBinary):
    return None
  low, high = map(np.asarray, bounds)
  if dtype.kind == 'f':
    # Rounded as the values are.
    with np.errstate(over='ignore'):
      low, high = low.astype(dtype), high.astype(dtype)
  least, largest = -np.inf, np.inf
  if dtype.kind in 'iu':
    least, largest = np.iinfo(dtype).min, np.iinfo(dtype).max
  if (low <= least).all() and (high >= largest).all():
    return None
  is_choice = isinstance(space, spaces.Discrete)
  return step_checks.Bounds(key, low, high, is_strict=is_choice)


def keep_keys(dropped: Collection[str], nest: types.Nest) -> types.Nest:
  """Returns `nest` without the outermost keys that `env` drops.

  All its dicts become sorted dicts.

  Raises ValueError if nothing is left.
  """
  if not isinstance(nest, Mapping):
    return nest
  rest = {k: x for k, x in _sorted(nest).items() if k not in dropped}
  if not rest:
    raise ValueError(
      f'--config.env.drop_observations={tuple(dropped)}: nothing is left of '
      f'the observation, which has {", ".join(sorted(nest))}.'
    )
  return rest


def joined_spec(spec: types.StreamSpec) -> types.StreamSpec:
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


def _sorted(nest: types.Nest) -> types.Nest:
  if not isinstance(nest, Mapping):
    return nest
  return {key: _sorted(nest[key]) for key in sorted(nest)}


class PackedSpace(spaces.Box):
  """Actions of several parts, as one vector of their numbers."""

  def __init__(self, action: types.ActionSpec):
    self.action = action
    low = np.array(action.minimum, np.float32)
    super().__init__(low, np.array(action.maximum, np.float32))


def action_spec(space: spaces.Space, flag: str) -> types.ActionSpec:
  """Returns the `ActionSpec` of an action space.

  Raises ValueError if it is not Discrete, MultiDiscrete, MultiBinary or Box,
  nor a Dict or Tuple of these, or if actions are empty.
  """
  if isinstance(space, PackedSpace):
    return space.action
  bounds = _bounds(space)
  if bounds is None:
    raise ValueError(
      f'{flag}: actions must be arrays of numbers, not {type(space).__name__}; '
      'choose an environment with others, or wrap it.'
    )
  low, high = bounds
  if isinstance(space, spaces.Box):
    low, high = _bound(low), _bound(high)
  if 0 in np.shape(low):
    raise ValueError(
      f'{flag}: actions of shape {np.shape(low)} are empty; give them a number.'
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
