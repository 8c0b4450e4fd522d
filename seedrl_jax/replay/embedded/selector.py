"""Draws slots in proportion to priority^exponent, within their sample limit."""

import math

import numpy as np


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


class Selector:
  """Priorities and sample counts of slots, and random draws from them.

  Attributes:
    priorities: float64 `[slots]`; valid for present slots.
    times_sampled: int64 `[slots]`; valid for present slots.
  """

  def __init__(
    self,
    num_slots: int,
    exponent: float,
    max_times_sampled: int,
    rng: np.random.Generator,
  ):
    """Starts empty; exponent 0 is uniform, `max_times_sampled` 0 unlimited."""
    self.priorities = np.zeros(num_slots)
    self.times_sampled = np.zeros(num_slots, np.int64)
    self.rng = rng
    self._exponent = exponent
    self._limit = max_times_sampled
    self._tree = SumTree(num_slots)
    self._present = np.zeros(num_slots, bool)
    self._draws_left = 0

  @property
  def drawable(self) -> float:
    """Draws that the present slots still allow."""
    return self._draws_left if self._limit else math.inf

  def add(
    self,
    slots: np.ndarray,
    priorities: np.ndarray,
    times_sampled: np.ndarray | int = 0,
  ) -> None:
    """Makes slots `[n]` present, with priorities `[n]`."""
    self._present[slots] = True
    self.times_sampled[slots] = times_sampled
    self._draws_left += self._left(slots)
    self.set_priorities(slots, priorities)

  def remove(self, slots: np.ndarray) -> None:
    """Makes distinct present slots `[n]` absent."""
    self._draws_left -= self._left(slots)
    self._present[slots] = False
    self._tree.update(slots, 0.0)

  def set_priorities(self, slots: np.ndarray, priorities: np.ndarray) -> None:
    """Sets priorities `[n]` of present slots `[n]`; the last one counts."""
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
    parts: list[tuple[np.ndarray, np.ndarray]] = []
    missing = n
    while missing:
      chosen, probabilities = self._select(missing)
      allowed = self.times_sampled[chosen] + occurrence(chosen) < self._limit
      chosen = chosen[allowed]
      np.add.at(self.times_sampled, chosen, 1)
      # They stay present but cannot be drawn again.
      self._tree.update(self.exhausted(chosen), 0.0)
      parts.append((chosen, probabilities[allowed]))
      missing -= len(chosen)
    self._draws_left -= n
    slots, probabilities = zip(*parts, strict=True)
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
    candidates = self._present.copy()
    if self._limit:
      candidates &= self.times_sampled < self._limit
    candidates = np.flatnonzero(candidates)
    chosen = self.rng.choice(candidates, n)
    return chosen, np.full(n, 1 / len(candidates))


def occurrence(values: np.ndarray) -> np.ndarray:
  """Returns how often each of values `[n]` came before, int64 `[n]`."""
  order = np.argsort(values, kind='stable')
  ordered = values[order]
  position = np.arange(len(values))
  new = np.ones(len(values), bool)
  new[1:] = ordered[1:] != ordered[:-1]
  # Position in the sorted array less that of the first equal value.
  first = np.maximum.accumulate(np.where(new, position, 0))
  count = np.empty(len(values), np.int64)
  count[order] = position - first
  return count
