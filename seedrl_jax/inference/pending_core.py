"""Core states that are known before the unrolls that start with them.

An unroll's first steps are the last ones of the unroll before, so the core
state before them passes by while that one is still being filled. The assembler
keeps it here until the new unroll has a column.
"""

import numpy as np


class PendingCore:
  """Keeps the core states of each environment's next unrolls."""

  def __init__(self, num_envs: int, depth: int):
    """Starts with none.

    Args:
      num_envs: environments, of ids `[0, num_envs)`.
      depth: unrolls of an environment that may have begun before one is full.
        Where they overlap by more than half, the last steps of one are the
        start of several.
    """
    self._depth = depth
    # Leaves [num_envs, depth, ...]; made when the first states arrive, and
    # never for agents without any.
    self._states: list[np.ndarray] = []
    # The number of each environment's unroll, modulo the depth.
    self._turn = np.zeros(num_envs, np.int64)

  def keep(
    self, env_id: np.ndarray, ahead: np.ndarray, core: list[np.ndarray]
  ) -> None:
    """Keeps the core states that coming unrolls start with.

    Args:
      env_id: int `[n]`, unique.
      ahead: int `[n]`, in `[0, depth]`, whose: 1 is the unroll that follows
        the present one. 0, the present one's, is not given out any more.
      core: leaves `[n, ...]`.
    """
    if not self._states:
      shape = (len(self._turn), self._depth)
      self._states = [np.zeros((*shape, *x.shape[1:]), x.dtype) for x in core]
    turn = (self._turn[env_id] + ahead) % self._depth
    for states, x in zip(self._states, core, strict=True):
      states[env_id, turn] = x

  def advance(self, env_id: np.ndarray) -> list[np.ndarray]:
    """Goes on to the next unroll of environments, int `[n]`.

    Returns:
      The leaves `[n, ...]` that it starts with; none where none were kept.
    """
    if not self._states:
      return []
    turn = (self._turn[env_id] + 1) % self._depth
    self._turn[env_id] = turn
    return [states[env_id, turn] for states in self._states]
