"""Memory of a replay: which unroll is in which slot, and random draws of slots.

Calls need the table's lock, except the copies of `SlotStorage`.
"""

import math
from collections.abc import Iterable, Iterator

import numpy as np

from seedrl_jax.replay import base, blocks

# Unrolls that a checkpoint copies at a time.
_SAVE_AT_ONCE = 64


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
    self, leaf: int, slots: np.ndarray, pieces: Iterable[np.ndarray]
  ) -> None:
    """Sets one leaf of slots `[n]`, a few unrolls at a time."""
    stop = 0
    for piece in pieces:
      start, stop = stop, stop + len(piece)
      self._leaves[leaf][slots[start:stop]] = piece
    if stop != len(slots):
      raise ValueError(f'it has {stop} unrolls instead of {len(slots)}')

  def _rows(self, slots: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields each leaf as contiguous rows, and the rows of a block."""
    num_steps = self._layout.num_steps
    steps = slots[None, :] * num_steps + np.arange(num_steps)[:, None]
    for leaf, time_major in zip(
      self._leaves, self._layout.time_major, strict=True
    ):
      if time_major:
        yield leaf.reshape(-1, *leaf.shape[2:]), steps
      else:
        yield leaf, slots


class SumTree:
  """Draws slots in proportion to their weights.

  Operations take a few NumPy calls per level (17 levels for 1e5 unrolls). Inner
  nodes are recomputed from their children, so rounding errors do not pile up.
  """

  def __init__(self, size: int):
    self._leaves = 1 << max(0, size - 1).bit_length()
    # Node 1 is the root; node i has children 2i and 2i + 1.
    self._nodes = np.zeros(2 * self._leaves)

  @property
  def total(self) -> float:
    return float(self._nodes[1])

  def __getitem__(self, slots: np.ndarray) -> np.ndarray:
    """Returns the weights, float64 `[n]`, of slots `[n]`."""
    return self._nodes[self._leaves + slots]

  def update(self, slots: np.ndarray, weights: np.ndarray | float) -> None:
    """Sets weights `[n]` of slots `[n]`; of a repeated slot the last counts."""
    node = self._leaves + np.asarray(slots, np.int64)
    self._nodes[node] = weights
    while node.size and node[0] > 1:
      # Computing the parent of two siblings twice is cheaper than checking.
      node = node >> 1
      left = 2 * node
      self._nodes[node] = self._nodes[left] + self._nodes[left + 1]

  def find(self, mass: np.ndarray) -> np.ndarray:
    """Returns the slots, int64 `[n]`, at cumulative masses in `[0, total)`."""
    mass = np.array(mass, np.float64)
    node = np.ones(mass.shape, np.int64)
    while node.size and node[0] < self._leaves:
      left = 2 * node
      left_sum = self._nodes[left]
      # Rounding may leave a mass beyond the right child: never enter an empty
      # one.
      right = (mass >= left_sum) & (self._nodes[left + 1] > 0)
      mass -= np.where(right, left_sum, 0.0)
      node = left + right
    return node - self._leaves


class Slots:
  """Which slots hold an item, their order, their priorities, and draws.

  Keys count all items ever inserted, from 1 on. An item's slot is its key
  modulo the number of slots, so that the oldest gives way. A *pinned* slot is
  being filled or copied and not used again before that ends.
  """

  def __init__(
    self,
    num_slots: int,
    exponent: float,
    max_times_sampled: int,
    rng: np.random.Generator,
  ):
    """Starts empty; exponent 0 is uniform, `max_times_sampled` 0 unlimited."""
    self.size = 0
    # `[slots]`, valid for items.
    self.priorities = np.zeros(num_slots)
    self.times_sampled = np.zeros(num_slots, np.int64)
    self.keys = np.zeros(num_slots, np.uint64)  # 0: no item
    self.rng = rng
    self._num_slots = num_slots
    self._exponent = exponent
    self._limit = max_times_sampled
    self._tree = SumTree(num_slots)
    self._draws_left = 0
    self._pins = np.zeros(num_slots, np.int32)
    # The next key, and one that is at most the oldest item's.
    self._next = self._oldest = 1

  @property
  def drawable(self) -> float:
    """Draws that the items still allow."""
    return self._draws_left if self._limit else math.inf

  def slots(self, keys: np.ndarray) -> np.ndarray:
    """Returns the slots, int64 `[n]`, of keys, uint64 `[n]`."""
    return (keys % np.uint64(self._num_slots)).astype(np.int64)

  def find(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns which of keys `[n]` are items, bool `[n]`, and their slots."""
    slots = self.slots(keys)
    live = (keys != 0) & (self.keys[slots] == keys)
    return live, slots[live]

  def has_room(self, n: int) -> bool:
    """Returns whether n slots can be reserved."""
    return not self._pins[self.slots(self._keys(self._next, n))].any()

  def reserve(self, n: int) -> np.ndarray:
    """Returns the keys of n new items; empties and pins their slots."""
    keys = self._keys(self._next, n)
    self._next += n
    slots = self.slots(keys)
    # With a sample limit, old items may be left though it is not full.
    self.remove(slots[self.keys[slots] > 0])
    self.pin(slots)
    return keys

  def publish(self, keys: np.ndarray, priorities: np.ndarray) -> None:
    """Makes items of reserved keys `[n]`, with priorities `[n]`."""
    slots = self.slots(keys)
    self.unpin(slots)
    self._add(keys, slots, priorities, 0)
    # Those of later keys may have been published before.
    self._oldest = min(self._oldest, int(keys[0]))

  def restore(
    self, keys: np.ndarray, priorities: np.ndarray, times_sampled: np.ndarray
  ) -> np.ndarray:
    """Puts items `[n]` of other slots, oldest first, in these empty ones.

    Returns their slots `[n]`. Keys are kept if they have a slot each.
    """
    slots = self.slots(keys)
    if len(np.unique(slots)) < len(slots):
      keys = self._keys(1, len(keys))
      slots = self.slots(keys)
    self._add(keys, slots, priorities, times_sampled)
    if self.size:
      self._oldest, self._next = int(keys[0]), int(keys[-1]) + 1
    return slots

  def _add(
    self,
    keys: np.ndarray,
    slots: np.ndarray,
    priorities: np.ndarray,
    times_sampled: np.ndarray | int,
  ) -> None:
    self.keys[slots] = keys
    self.size += len(keys)
    self.times_sampled[slots] = times_sampled
    self._draws_left += self._left(slots)
    self.set_priorities(slots, priorities)

  def remove(self, slots: np.ndarray) -> None:
    """Removes the items of distinct slots."""
    self._draws_left -= self._left(slots)
    self.keys[slots] = 0
    self.size -= len(slots)
    self._tree.update(slots, 0.0)

  def pin(self, slots: np.ndarray) -> None:
    """Protects slots, which may repeat, from reuse."""
    np.add.at(self._pins, slots, 1)

  def unpin(self, slots: np.ndarray) -> None:
    """Undoes one `pin`."""
    np.subtract.at(self._pins, slots, 1)

  def live(self) -> np.ndarray:
    """Returns the slots of all items, oldest first."""
    return self.slots(np.sort(self.keys[self.keys > 0]))

  def trim(self, size: int) -> None:
    """Removes the oldest items until `size` are left."""
    while (excess := self.size - size) > 0:
      _, slots = self.find(self._keys(self._oldest, excess))
      self.remove(slots)
      self._oldest += excess

  def _keys(self, first: int, n: int) -> np.ndarray:
    return np.arange(first, first + n, dtype=np.uint64)

  def set_priorities(self, slots: np.ndarray, priorities: np.ndarray) -> None:
    """Sets priorities `[n]` of items' slots `[n]`; the last one counts."""
    self.priorities[slots] = priorities
    self._tree.update(slots, priorities**self._exponent)

  def draw(self, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws n slots, as if one by one; that many draws must be left.

    Returns slots, int64 `[n]`, and their probabilities when drawn, float64
    `[n]`.
    """
    if not self._limit:
      chosen, probabilities = self._select(n)
      np.add.at(self.times_sampled, chosen, 1)
      return chosen, probabilities
    draws = []
    for _ in range(n):
      draws.append(self._select(1))
      chosen, _ = draws[-1]
      self.times_sampled[chosen] += 1
      # It stays an item but cannot be drawn again.
      self._tree.update(self.exhausted(chosen), 0.0)
    self._draws_left -= n
    slots, probabilities = zip(*draws, strict=True)
    return np.concatenate(slots), np.concatenate(probabilities)

  def exhausted(self, slots: np.ndarray) -> np.ndarray:
    """Returns the distinct slots that have reached the limit."""
    if not self._limit:
      return np.empty(0, np.int64)
    return np.unique(slots[self.times_sampled[slots] >= self._limit])

  def _left(self, slots: np.ndarray) -> int:
    return int((self._limit - self.times_sampled[slots]).sum())

  def _select(self, n: int) -> tuple[np.ndarray, np.ndarray]:
    total = self._tree.total
    if total > 0:
      chosen = self._tree.find(self.rng.random(n) * total)
      return chosen, self._tree[chosen] / total
    # All priorities are zero: draw uniformly, as Reverb does.
    limit = self._limit or math.inf
    candidates = np.flatnonzero((self.keys > 0) & (self.times_sampled < limit))
    chosen = self.rng.choice(candidates, n)
    return chosen, np.full(n, 1 / len(candidates))
