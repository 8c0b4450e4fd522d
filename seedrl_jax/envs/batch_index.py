"""Recognises batches of environments that come again and again.

`EpisodeStatistics` and the inference worker index small per-environment
arrays with every batch's ids. A pool with one thread gives the same few
batches in turn, mostly of consecutive ids, and a slice is several times
cheaper than an index array.
"""

import numpy as np

# Batches to remember; a pool with many threads never repeats itself.
_MOST = 64


class BatchIndex:
  """Maps arrays of ids to slices where they are consecutive."""

  def __init__(self) -> None:
    """Starts with no batch seen."""
    self._seen: dict[bytes, slice | None] = {}

  def __call__(self, env_id: np.ndarray) -> slice | np.ndarray:
    """Returns what indexes an array like `env_id` does, as fast as can be.

    Args:
      env_id: int32 `[B]`, unique.

    Returns:
      A slice where the ids are consecutive and ascending (indexing then gives
      a view), else `env_id` itself.
    """
    key = env_id.tobytes()
    index = self._seen.get(key, env_id)
    if index is env_id:
      index = _consecutive(env_id)
      if len(self._seen) < _MOST:
        self._seen[key] = index
    return env_id if index is None else index


def _consecutive(env_id: np.ndarray) -> slice | None:
  first, n = int(env_id[0]), len(env_id)
  if np.array_equal(env_id, np.arange(first, first + n)):
    return slice(first, first + n)
  return None
