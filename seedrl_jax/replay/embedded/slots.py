"""Memory of a replay: one slot per unroll, and which unroll is in which slot.

Calls of `SlotIndex` need the table's lock, the copies of `SlotStorage` do not.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from seedrl_jax.replay import base, blocks

# Unrolls that a checkpoint copies at a time.
_SAVE_AT_ONCE = 64
# A key is `sequence << _SLOT_BITS | slot`: it grows with every insert, is never
# reused, and contains its slot.
_SLOT_BITS = 28
_SLOT_MASK = np.uint64((1 << _SLOT_BITS) - 1)


class SlotStorage:
  """The unrolls' memory: leaves `[slots, T + 1, ...]` or `[slots, ...]`."""

  def __init__(self, layout: blocks.UnrollLayout, num_slots: int):
    """Reserves address space; raises MemoryError if the machine refuses."""
    self._layout = layout
    try:
      self._leaves = [
        np.empty((num_slots, *spec.shape), spec.dtype) for spec in layout.specs
      ]
    except MemoryError as e:
      gigabytes = layout.unroll_bytes * num_slots / 1e9
      raise MemoryError(
        f'--config.replay.max_size: {num_slots} unrolls take {gigabytes:.1f} '
        'GB, more than this machine gives; lower it.'
      ) from e

  def put(self, slots: np.ndarray, block: base.Block) -> None:
    """Copies the W columns of a block to slots `[W]`."""
    for leaf, (rows, index) in enumerate(self._rows(slots)):
      rows[index] = block.leaves[leaf]

  def get(self, slots: np.ndarray, block: base.Block) -> None:
    """Copies slots `[W]` to the W columns of a block."""
    for leaf, (rows, index) in enumerate(self._rows(slots)):
      # Mode 'raise' would copy twice, through a buffer.
      np.take(rows, index, axis=0, out=block.leaves[leaf], mode='clip')

  def leaf_pieces(self, leaf: int, slots: np.ndarray) -> Iterator[np.ndarray]:
    """Yields copies of one leaf of slots `[n]`, a few unrolls at a time."""
    for start in range(0, len(slots), _SAVE_AT_ONCE):
      yield self._leaves[leaf][slots[start : start + _SAVE_AT_ONCE]]

  def load_leaf(
    self,
    leaf: int,
    slots: np.ndarray,
    pieces: Iterable[np.ndarray],
    skip: int,
  ) -> None:
    """Sets one leaf of slots `[n]` to rows without the first `skip`."""
    row = -skip
    for piece in pieces:
      old = max(0, -row)
      stop = row + len(piece)
      self._leaves[leaf][slots[row + old : stop]] = piece[old:]
      row = stop

  def _rows(self, slots: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns each leaf as contiguous rows, and the rows of a block."""
    result = []
    by_length: dict[int, np.ndarray] = {}
    for leaf, time_major in zip(
      self._leaves, self._layout.time_major, strict=True
    ):
      if not time_major:
        result.append((leaf, slots))
        continue
      length = leaf.shape[1]
      if length not in by_length:
        steps = np.arange(length)[:, None]
        by_length[length] = slots[None, :] * length + steps
      rows = leaf.reshape(-1, *leaf.shape[2:])
      result.append((rows, by_length[length]))
    return result


class SlotIndex:
  """Which slots are free, which hold an item, and the order of the items.

  A slot is *free*, *reserved* (being filled), *live* (an item of the table),
  or, after its item was removed, *pinned* while it is still being copied.
  """

  def __init__(self, num_slots: int):
    """Raises ValueError if keys cannot name that many slots."""
    if num_slots > int(_SLOT_MASK):
      raise ValueError(
        f'--config.replay.max_size: at most {int(_SLOT_MASK)} unrolls.'
      )
    self.size = 0
    self.num_free = num_slots
    self.next_sequence = 1
    # A stack with the lowest slot on top, so that pages are mapped in order.
    self._free = np.arange(num_slots - 1, -1, -1)
    self._key = np.zeros(num_slots, np.uint64)  # 0: no item
    self._pins = np.zeros(num_slots, np.int32)
    # Keys in order of insertion; those of removed items are gaps.
    self._order = np.zeros(2 * num_slots, np.uint64)
    self._head = self._tail = 0

  def reserve(self, n: int) -> np.ndarray:
    """Takes n free slots; there must be as many."""
    self.num_free -= n
    return self._free[self.num_free : self.num_free + n][::-1].copy()

  def publish(self, slots: np.ndarray) -> np.ndarray:
    """Makes reserved slots `[n]` live; returns their keys, uint64 `[n]`."""
    n = len(slots)
    sequence = np.arange(
      self.next_sequence, self.next_sequence + n, dtype=np.uint64
    )
    keys = (sequence << np.uint64(_SLOT_BITS)) | slots.astype(np.uint64)
    self.next_sequence += n
    self._key[slots] = keys
    self.size += n
    if self._tail + n > len(self._order):
      self._close_gaps()
    self._order[self._tail : self._tail + n] = keys
    self._tail += n
    return keys

  def occupy(
    self, slots: np.ndarray, keys: np.ndarray, next_sequence: int
  ) -> None:
    """Makes slots `[n]` of an empty index live, oldest first.

    `keys`, uint64 `[n]`, are from another index; a key is kept if its slot is
    the same, otherwise only its order.
    """
    keys = (keys & ~_SLOT_MASK) | slots.astype(np.uint64)
    self._key[slots] = keys
    self.size = self._tail = len(slots)
    self._order[: self._tail] = keys
    self.next_sequence = next_sequence
    free = np.flatnonzero(self._key == 0)[::-1]
    self.num_free = len(free)
    self._free[: self.num_free] = free

  def remove(self, slots: np.ndarray) -> None:
    """Removes the items of live slots; pinned ones are freed by `unpin`."""
    self._key[slots] = 0
    self.size -= len(slots)
    self._push_free(slots[self._pins[slots] == 0])

  def pin(self, slots: np.ndarray) -> None:
    """Protects slots, which may repeat, from reuse."""
    np.add.at(self._pins, slots, 1)

  def unpin(self, slots: np.ndarray) -> None:
    """Undoes one `pin`."""
    np.subtract.at(self._pins, slots, 1)
    unique = np.unique(slots)
    gone = (self._pins[unique] == 0) & (self._key[unique] == 0)
    self._push_free(unique[gone])

  def keys(self, slots: np.ndarray) -> np.ndarray:
    return self._key[slots]

  def find(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns which of keys `[n]` are live, bool `[n]`, and their slots."""
    slots = (keys & _SLOT_MASK).astype(np.int64)
    live = (keys != 0) & (slots < len(self._key))
    live[live] = self._key[slots[live]] == keys[live]
    return live, slots[live]

  def live(self) -> np.ndarray:
    """Returns all live slots, oldest first."""
    return self.find(self._order[self._head : self._tail])[1]

  def oldest(self, n: int) -> np.ndarray:
    """Returns the n oldest live slots, which must then be removed."""
    found: list[np.ndarray] = []
    while n > 0:
      stop = min(self._head + n, self._tail)
      slots = self.find(self._order[self._head : stop])[1]
      self._head = stop
      found.append(slots)
      n -= len(slots)
    return np.concatenate([*found, np.empty(0, np.int64)])

  def _push_free(self, slots: np.ndarray) -> None:
    self._free[self.num_free : self.num_free + len(slots)] = slots
    self.num_free += len(slots)

  def _close_gaps(self) -> None:
    # Rare, as at most half of the entries are live.
    keys = self._order[self._head : self._tail]
    keys = keys[self.find(keys)[0]]
    self._order[: len(keys)] = keys
    self._head, self._tail = 0, len(keys)
