"""Flattening of nests without JAX, by the rules of `jax.tree`.

NamedTuples, tuples and lists keep their order, dicts go by sorted key, None
holds nothing. `types.ArraySpec` is a leaf, though a NamedTuple.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from seedrl_jax import types


def flatten(nest: types.Nest) -> list[Any]:
  """Returns the leaves of a nest, in the order of `jax.tree.leaves`."""
  return [leaf for _, leaf in flatten_with_paths(nest)]


def flatten_with_paths(
  nest: types.Nest, path: str = ''
) -> list[tuple[str, Any]]:
  """Returns (`steps.observation.image`, leaf) pairs, ordered as `flatten`."""
  children = _children(nest)
  if children is None:
    return [(path, nest)]
  pairs = []
  for key, child in children:
    pairs += flatten_with_paths(child, f'{path}.{key}' if path else str(key))
  return pairs


def unflatten(structure: types.Nest, leaves: Iterable[Any]) -> types.Nest:
  """Returns `structure` with other leaves; ValueError if too few or many."""
  remaining = iter(leaves)
  try:
    nest = _rebuild(structure, remaining)
  except StopIteration:
    raise ValueError('There are fewer leaves than the structure has.') from None
  if next(remaining, remaining) is not remaining:
    raise ValueError('There are more leaves than the structure has.')
  return nest


def join(leaves: Sequence[np.ndarray]) -> np.ndarray:
  """Returns arrays `[B]` or `[B, n]` as one, float32 `[B, N]`."""
  vectors = [x.reshape(len(x), -1) for x in leaves]
  return np.concatenate(vectors, axis=1, dtype=np.float32)


def _children(nest: Any) -> list[tuple[Any, Any]] | None:
  """Returns the keys and children of a nest; None if it is a leaf."""
  if nest is None:
    return []
  if isinstance(nest, dict):
    return [(key, nest[key]) for key in sorted(nest)]
  if isinstance(nest, (tuple, list)) and not types.is_spec(nest):
    names = getattr(nest, '_fields', range(len(nest)))
    return list(zip(names, nest, strict=True))
  return None


def _rebuild(structure: Any, leaves: Iterator[Any]) -> Any:
  pairs = _children(structure)
  if pairs is None:
    return next(leaves)
  # A generator would turn StopIteration into RuntimeError.
  children = [_rebuild(child, leaves) for _, child in pairs]
  if structure is None:
    return None
  if isinstance(structure, dict):
    return dict(zip(sorted(structure), children, strict=True))
  if hasattr(structure, '_fields'):
    return type(structure)(*children)
  return type(structure)(children)
