"""Which observations and actions an agent can have, and their specs.

Called by both kinds of local stream, so that they agree on dtypes, on the
order of a dict's keys and on what is refused.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NoReturn

import numpy as np

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
    ValueError: where nothing would be left.
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
    ValueError: where it is no sequence of strings.
  """
  if isinstance(dropped, str):
    raise ValueError(
      f'--config.env.drop_observations={dropped}: must be a tuple of strings, '
      f"such as ('{dropped}',)."
    )
  return tuple(dropped)


def refuse_continuous(flag: str) -> NoReturn:
  """Raises ValueError: the agents act in discrete environments only.

  Args:
    flag: that named the environment, with its value.
  """
  raise ValueError(
    f'{flag}: its actions are continuous, which needs the continuous-control '
    'agents planned for a later version; choose an environment with discrete '
    'actions.'
  )


def refuse_joint(flag: str) -> NoReturn:
  """Raises ValueError: an action must be one number; see above."""
  raise ValueError(
    f'{flag}: an action there is several numbers at once; choose an '
    'environment whose actions are one discrete choice.'
  )
