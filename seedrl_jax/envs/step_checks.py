"""Checks of what an environment returns from `reset` and `step`.

Each raises `InvalidStep`, whose message begins with a verb; the caller puts the
environment's number and name before it.
"""

import contextlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from seedrl_jax import types
from seedrl_jax.runtime import nest

# The largest absolute reward. Losses square rewards and gradients multiply them
# with observations: in float32 that is safe up to ten times this, but not a
# thousand times. Atari's scores fit.
LARGEST_REWARD = 1e6

_VALUES = {
  'reset': ('observation', 'info'),
  'step': ('observation', 'reward', 'terminated', 'truncated', 'info'),
}


class InvalidStep(ValueError):
  """An environment returned something that cannot be used."""


def values(method: str, result: Any) -> tuple[Any, ...]:
  """Returns what `reset` or `step` returned, if it has all values."""
  names = _VALUES[method]
  if isinstance(result, tuple) and len(result) == len(names):
    return result
  what = type(result).__name__
  if isinstance(result, tuple):
    what = f'{len(result)} values'
  raise InvalidStep(
    f'returned {what} from {method} instead of {len(names)} values '
    f"({', '.join(names)}): bring it to Gymnasium's interface."
  )


def reward(value: Any) -> float:
  """Returns a reward, which may be an array of one number."""
  # The usual case, as fast as can be.
  if isinstance(value, float) and -LARGEST_REWARD <= value <= LARGEST_REWARD:
    return value
  number = np.nan
  # Some are no array.
  with contextlib.suppress(TypeError, ValueError):
    array = np.asarray(value)
    # Larger integers than 64 bits are objects.
    if array.size == 1 and array.dtype.kind in 'biuf':
      number = float(array.item())
  # NaN fails both comparisons.
  if not -LARGEST_REWARD <= number <= LARGEST_REWARD:
    raise InvalidStep(
      f'gave a reward of {value!s:.80}, which is not a number from '
      f'{-LARGEST_REWARD:,.0f} to {LARGEST_REWARD:,.0f}: correct or scale it '
      'in the environment.'
    )
  return number


def write_observation(
  observation: Any, spec: types.Nest, rows: types.Nest, row: int, key: str = ''
) -> None:
  """Copies an observation into row `row` of arrays `[n, ...]`.

  Keys that the spec lacks are not read.
  """
  if isinstance(spec, types.ArraySpec):
    if (
      not isinstance(observation, np.ndarray)
      or observation.dtype != spec.dtype
      or observation.shape != spec.shape
    ):
      observation = _converted(observation, spec, key)
    rows[row] = observation
    return
  if not isinstance(observation, Mapping):
    raise InvalidStep(
      f'gave an observation{_of(key)} that is a '
      f'{type(observation).__name__}, not a dict.'
    )
  for name, child in spec.items():
    path = f'{key}.{name}' if key else str(name)
    if name not in observation:
      raise InvalidStep(f'gave an observation without the key {path!r}.')
    write_observation(observation[name], child, rows[name], row, path)


def _converted(value: Any, spec: types.ArraySpec, key: str) -> np.ndarray:
  """Returns what can be written where the spec's arrays belong."""
  try:
    array = np.asarray(value)
  except ValueError:
    raise InvalidStep(
      f'gave an observation{_of(key)} that is not an array.'
    ) from None
  if array.shape != spec.shape:
    raise InvalidStep(
      f'gave an observation{_of(key)} of shape {array.shape} instead of '
      f'{spec.shape}.'
    )
  if array.dtype.kind in 'iu' and spec.dtype.kind in 'iu':
    limits = np.iinfo(spec.dtype)
    low, high = np.asarray(limits.min), np.asarray(limits.max)
    if violation := Bounds(key, low, high).violation(array[None]):
      raise InvalidStep(violation[1])
  elif not np.can_cast(array.dtype, spec.dtype, 'same_kind'):
    raise InvalidStep(
      f'gave an observation{_of(key)} of dtype {array.dtype}, which '
      f'{spec.dtype} cannot hold.'
    )
  return array


def _of(key: str) -> str:
  return f' for the key {key!r}' if key else ''


def new_rows(spec: types.Nest, size: int) -> types.Nest:
  """Returns arrays `[size, ...]` to write observations to."""
  leaves = (np.empty((size, *s.shape), s.dtype) for s in nest.flatten(spec))
  return nest.unflatten(spec, leaves)


def read(observation: Any, spec: types.Nest) -> list[np.ndarray]:
  """Returns the arrays of an observation, `[1, ...]`; they must be finite."""
  rows = new_rows(spec, 1)
  write_observation(observation, spec, rows, 0)
  for key, x in nest.flatten_with_paths(rows):
    if x.dtype.kind == 'f' and not np.isfinite(x).all():
      raise InvalidStep(f'gave an observation{_of(key)} that is not finite.')
  return nest.flatten(rows)


class Bounds(NamedTuple):
  """Least and largest values of an observation's array."""

  key: str  # of the array; '' if it is the only one
  low: np.ndarray
  high: np.ndarray
  is_strict: bool = True  # a violation is an error, not a warning

  def violation(self, values: np.ndarray) -> tuple[int, str] | None:
    """Returns which of the rows `[n, ...]` is out of bounds first, and how."""
    bad = (values < self.low) | (values > self.high)
    if not bad.any():
      return None
    place = tuple(np.argwhere(bad)[0])
    low, high = (
      np.broadcast_to(x, bad.shape)[place] for x in (self.low, self.high)
    )
    return int(place[0]), (
      f'gave an observation{_of(self.key)} with {values[place]!s}, which is '
      f'not from {low!s} to {high!s}: correct it or its space.'
    )
