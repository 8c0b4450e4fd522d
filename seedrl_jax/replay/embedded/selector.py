"""Draws slots in proportion to priority^exponent, within their sample limit.

Called by `item_table.py`, with the table's lock held.
"""

import math

import numpy as np

from seedrl_jax.replay.embedded import sum_tree


class Selector:
  """Priorities and sample counts of slots, and random draws from them.

  Attributes:
    priorities: float64 `[slots]`, as given; of present slots.
    times_sampled: int64 `[slots]`; of present slots.
    rng: what the draws come from.
  """

  def __init__(
    self,
    num_slots: int,
    exponent: float,
    max_times_sampled: int,
    rng: np.random.Generator,
  ):
    """Makes a selector without any slot present.

    Args:
      num_slots: slots are in `[0, num_slots)`.
      exponent: of the priorities; 0 draws uniformly.
      max_times_sampled: draws of a slot at most; 0: no limit.
      rng: what the draws come from.
    """
    self.priorities = np.zeros(num_slots)
    self.times_sampled = np.zeros(num_slots, np.int64)
    self.rng = rng
    self._exponent = exponent
    self._limit = max_times_sampled
    self._tree = sum_tree.SumTree(num_slots)
    self._present = np.zeros(num_slots, bool)
    self._draws_left = 0

  @property
  def drawable(self) -> float:
    """Draws that all present slots together allow."""
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
    """Makes present slots `[n]`, which do not repeat, absent."""
    self._draws_left -= self._left(slots)
    self._present[slots] = False
    self._tree.update(slots, 0.0)

  def set_priorities(self, slots: np.ndarray, priorities: np.ndarray) -> None:
    """Sets priorities `[n]` of present slots `[n]`; the last one counts."""
    self.priorities[slots] = priorities
    self._tree.update(slots, priorities**self._exponent)

  def draw(self, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws n slots independently; there must be that many draws left.

    Where a slot's limit is reached in mid-batch, its further draws are
    replaced by draws from the others: what drawing one by one and removing
    each slot at its limit would give.

    Returns:
      Slots, int64 `[n]`, and the probability with which each was drawn,
      float64 `[n]`.
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
      # They stay present, but cannot be drawn again.
      self._tree.update(self.exhausted(chosen), 0.0)
      parts.append((chosen, probabilities[allowed]))
      missing -= len(chosen)
    self._draws_left -= n
    slots, probabilities = zip(*parts, strict=True)
    return np.concatenate(slots), np.concatenate(probabilities)

  def exhausted(self, slots: np.ndarray) -> np.ndarray:
    """Returns those of the slots, once each, that have reached the limit."""
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
    # Every priority is zero: uniformly, as Reverb does.
    candidates = self._present.copy()
    if self._limit:
      candidates &= self.times_sampled < self._limit
    candidates = np.flatnonzero(candidates)
    chosen = self.rng.choice(candidates, n)
    return chosen, np.full(n, 1 / len(candidates))


def occurrence(values: np.ndarray) -> np.ndarray:
  """Returns for each of values `[n]` how often it came before, int64 `[n]`."""
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
