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
  return [leaf for _, leaf in _walk(nest, '')]


def flatten_with_paths(nest: types.Nest) -> list[tuple[str, Any]]:
  """Returns (`steps.observation.image`, leaf) pairs, ordered as `flatten`."""
  return list(_walk(nest, ''))


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


def _is_named_tuple(nest: Any) -> bool:
  return isinstance(nest, tuple) and hasattr(nest, '_fields')


def _is_leaf(nest: Any) -> bool:
  is_spec = isinstance(nest, types.ArraySpec)
  return is_spec or not isinstance(nest, (dict, tuple, list))


def _walk(nest: Any, path: str) -> Iterator[tuple[str, Any]]:
  if nest is None:
    return
  if _is_leaf(nest):
    yield path, nest
    return
  if isinstance(nest, dict):
    children = [(key, nest[key]) for key in sorted(nest)]
  elif _is_named_tuple(nest):
    children = list(zip(nest._fields, nest, strict=True))
  else:
    children = list(enumerate(nest))
  for key, child in children:
    yield from _walk(child, f'{path}.{key}' if path else str(key))


def _rebuild(structure: Any, leaves: Iterator[Any]) -> Any:
  if structure is None:
    return None
  if _is_leaf(structure):
    return next(leaves)
  if isinstance(structure, dict):
    return {key: _rebuild(structure[key], leaves) for key in sorted(structure)}
  # A generator would turn StopIteration into RuntimeError.
  children = [_rebuild(child, leaves) for child in structure]
  if _is_named_tuple(structure):
    return type(structure)(*children)
  return type(structure)(children)
