"""Small per-step values packed into one int32 array each way.

A transfer to or from the accelerator takes tens of microseconds at any size.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from seedrl_jax import types

_INT32 = np.dtype(np.int32)
_SLOT, _ENV_ID, _FIRST, _REWARD, _PREVIOUS_ACTION = range(5)


class Header(NamedTuple):
  """The columns of an int32 `[B, H]` header.

  Attributes:
    slot: int32 `[B]`, rows of the core-state table.
    env_id: int32 `[B]`, run-wide ids.
    first, reward, previous_action: see `types.AgentInput`; on the host, `first`
      is int32.
  """

  slot: types.Array
  env_id: types.Array
  first: types.Array
  reward: types.Array
  previous_action: types.Array


def make_header(
  size: int, padding_slot: int, action: types.ActionSpec
) -> np.ndarray:
  """Returns an int32 `[size, H]` header of padding rows."""
  width = _PREVIOUS_ACTION + int(np.prod(action.shape, dtype=int))
  header = np.zeros((size, width), np.int32)
  header[:, _SLOT] = padding_slot
  return header


def header_views(header: np.ndarray, action: types.ActionSpec) -> Header:
  """Returns writable views of a header on the host."""
  previous_action = header[:, _PREVIOUS_ACTION:].view(action.dtype)
  return Header(
    slot=header[:, _SLOT],
    env_id=header[:, _ENV_ID],
    first=header[:, _FIRST],
    reward=header[:, _REWARD].view(np.float32),
    previous_action=previous_action.reshape(len(header), *action.shape),
  )


def read_header(header: jax.Array, action: types.ActionSpec) -> Header:
  """Splits an int32 `[B, H]` header inside a jitted function."""
  previous_action = jax.lax.bitcast_convert_type(
    header[:, _PREVIOUS_ACTION:], action.dtype
  )
  return Header(
    slot=header[:, _SLOT],
    env_id=header[:, _ENV_ID],
    first=header[:, _FIRST] != 0,
    reward=jax.lax.bitcast_convert_type(header[:, _REWARD], jnp.float32),
    previous_action=previous_action.reshape(len(header), *action.shape),
  )


def pack(output: types.Nest) -> jax.Array:
  """Packs a nest of `[B, ...]` four-byte leaves into int32 `[B, K]`."""
  leaves = jax.tree.leaves(output)
  columns = []
  for leaf in leaves:
    if leaf.dtype.itemsize != 4:
      raise TypeError(
        f'An agent output leaf is {leaf.dtype}{list(leaf.shape)}; every leaf '
        'must be of a four-byte type (int32, uint32 or float32).'
      )
    bits = jax.lax.bitcast_convert_type(leaf, jnp.int32)
    columns.append(bits.reshape(leaf.shape[0], -1))
  return columns[0] if len(columns) == 1 else jnp.concatenate(columns, axis=1)


class Unpacker:
  """Splits a packed array on the host, without copying, as `spec` says."""

  def __init__(self, spec: types.Nest):
    leaves, self._treedef = jax.tree.flatten(spec, is_leaf=types.is_spec)
    self._columns: list[tuple[int, int, tuple[int, ...], Any]] = []
    start = 0
    for leaf in leaves:
      stop = start + int(np.prod(leaf.shape, dtype=np.int64))
      self._columns.append((start, stop, tuple(leaf.shape), leaf.dtype))
      start = stop
    self.width = start

  def __call__(self, packed: np.ndarray) -> types.Nest:
    """Returns views of `packed`, int32 `[B, K]`, as a nest of `[B, ...]`."""
    return self.nest(self.leaves(packed))

  @property
  def num_leaves(self) -> int:
    """Number of leaves of the nest."""
    return len(self._columns)

  def leaves(self, packed: np.ndarray) -> list[np.ndarray]:
    """Returns the same views as a list, in the order of `jax.tree.leaves`."""
    n = packed.shape[0]
    leaves = []
    for start, stop, shape, dtype in self._columns:
      leaf = packed[:, start:stop] if shape else packed[:, start]
      if dtype != _INT32:
        leaf = leaf.view(dtype)
      leaves.append(leaf.reshape(n, *shape) if len(shape) > 1 else leaf)
    return leaves

  def nest(self, leaves: Sequence[Any]) -> types.Nest:
    """Returns a sequence with an entry for each leaf as the nest."""
    return jax.tree.unflatten(self._treedef, leaves)
