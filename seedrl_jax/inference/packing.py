"""Small per-step values packed into one array each way.

A transfer between host and accelerator costs tens of microseconds whatever it
carries, and a call's every argument costs one more conversion. So everything
of a step but its observation goes up as one int32 `[B, 5]` header, and
everything an agent puts out comes back as one int32 `[B, K]` array. The device
step of this room is the only user.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from seedrl_jax import types

HEADER_WIDTH = 5
_INT32 = np.dtype(np.int32)
_SLOT, _ENV_ID, _FIRST, _PREVIOUS_ACTION, _REWARD = range(HEADER_WIDTH)


def make_header(size: int, padding_slot: int) -> np.ndarray:
  """Returns an int32 `[size, 5]` header whose rows are all padding."""
  header = np.zeros((size, HEADER_WIDTH), np.int32)
  header[:, _SLOT] = padding_slot
  return header


def write_ids(header: np.ndarray, slot: np.ndarray, env_id: np.ndarray) -> None:
  """Fills in what stays the same while the same environments come.

  Args:
    header: int32 `[B, 5]`.
    slot: int `[B]`, rows of the core-state table.
    env_id: int `[B]`, run-wide ids.
  """
  header[:, _SLOT] = slot
  header[:, _ENV_ID] = env_id


def write_step(
  header: np.ndarray,
  first: np.ndarray,
  previous_action: np.ndarray,
  reward: np.ndarray,
) -> None:
  """Fills in a step, from arrays of `[B]` as in `types.AgentInput`."""
  header[:, _FIRST] = first
  header[:, _PREVIOUS_ACTION] = previous_action
  header[:, _REWARD] = reward.view(np.int32)


class Header(NamedTuple):
  """The columns of a header on the device, each `[B]`."""

  slot: jax.Array
  env_id: jax.Array
  first: jax.Array
  previous_action: jax.Array
  reward: jax.Array


def read_header(header: jax.Array) -> Header:
  """Splits an int32 `[B, 5]` header inside a jitted function."""
  return Header(
    slot=header[:, _SLOT],
    env_id=header[:, _ENV_ID],
    first=header[:, _FIRST] != 0,
    previous_action=header[:, _PREVIOUS_ACTION],
    reward=jax.lax.bitcast_convert_type(header[:, _REWARD], jnp.float32),
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
  """Takes a packed array apart on the host without copying it."""

  def __init__(self, spec: types.Nest):
    """Makes an unpacker.

    Args:
      spec: nest of `ArraySpec` (or anything with shape and dtype), as the
        agent's output has it, without the batch dimension.
    """
    leaves, self._treedef = jax.tree.flatten(spec, is_leaf=_is_spec)
    self._columns: list[tuple[int, int, tuple[int, ...], Any]] = []
    start = 0
    for leaf in leaves:
      stop = start + int(np.prod(leaf.shape, dtype=np.int64))
      self._columns.append((start, stop, tuple(leaf.shape), leaf.dtype))
      start = stop
    self.width = start

  def __call__(self, packed: np.ndarray) -> types.Nest:
    """Returns views of `packed`, int32 `[B, K]`, as the nest of `[B, ...]`."""
    return self.nest(self.leaves(packed))

  @property
  def num_leaves(self) -> int:
    """How many leaves the nest has."""
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
    """Returns anything that has an entry for each leaf as the nest."""
    return jax.tree.unflatten(self._treedef, leaves)


def _is_spec(x: Any) -> bool:
  return isinstance(x, types.ArraySpec)
