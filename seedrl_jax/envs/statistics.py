"""Episode returns and lengths, and a log of finished episodes."""

import collections
import threading
from typing import NamedTuple

import numpy as np

from seedrl_jax.envs import base

# Finished episodes that wait to be taken.
_MOST_EPISODES = 10_000


class EndedEpisodes(NamedTuple):
  """Episodes that ended in one batch, as columns of `base.Episode`, `[n]`."""

  env_id: np.ndarray
  episode_return: np.ndarray
  length: np.ndarray
  frames: np.ndarray
  terminated: np.ndarray


class EpisodeLog:
  """A bounded, thread-safe list of finished episodes.

  Makes `base.Episode`s only in `take`, as `append` must be fast.
  """

  def __init__(self) -> None:
    self._lock = threading.Lock()
    self._batches: collections.deque[EndedEpisodes] = collections.deque()
    self._size = 0
    self._dropped = 0

  @property
  def dropped(self) -> int:
    """Episodes that newer ones pushed out before they were taken."""
    return self._dropped

  def append(self, batch: EndedEpisodes) -> None:
    """Adds a batch of episodes, oldest first."""
    with self._lock:
      self._batches.append(batch)
      self._size += len(batch.env_id)
      while self._size > _MOST_EPISODES:
        self._drop_oldest(self._size - _MOST_EPISODES)

  def take(self) -> list[base.Episode]:
    """Removes and returns all episodes."""
    with self._lock:
      batches = list(self._batches)
      self._batches.clear()
      self._size = 0
    episodes: list[base.Episode] = []
    for batch in batches:
      columns = (column.tolist() for column in batch)
      episodes += map(base.Episode, *columns)
    return episodes

  def _drop_oldest(self, most: int) -> None:
    oldest = self._batches.popleft()
    n = min(most, len(oldest.env_id))
    if n < len(oldest.env_id):
      kept = (column[n:] for column in oldest)
      self._batches.appendleft(EndedEpisodes(*kept))
    self._size -= n
    self._dropped += n


class EpisodeStatistics:
  """Sums rewards and steps of each environment of a stream."""

  def __init__(self, num_envs: int, action_repeat: int):
    self.log = EpisodeLog()
    self._action_repeat = action_repeat
    self._returns = np.zeros(num_envs, np.float64)
    # FIRST is no step: counting from -1 saves a mask per batch.
    self._lengths = np.full(num_envs, -1, np.int64)

  def update(
    self,
    env_id: np.ndarray,
    reward: np.ndarray,
    last: np.ndarray,
    truncated: np.ndarray,
    over: np.ndarray | None = None,
  ) -> None:
    """Adds one batch of steps.

    Args:
      env_id: int32 `[B]`, unique.
      reward: float32 `[B]`, the raw reward; 0 at FIRST.
      last: bool `[B]`, whether the learner's episode ends.
      truncated: bool `[B]`, whether it ends without having terminated.
      over: bool `[B]`, whether the real episode ends, if `last` is also set at
        lost lives (Atari); else None.
    """
    index = base.as_slice(env_id)
    returns = self._returns[index]
    returns += reward
    lengths = self._lengths[index]
    lengths += 1
    if np.count_nonzero(last):
      self._end(env_id, returns, lengths, last, truncated, over)
    # Slices are views, changed in place.
    if index is env_id:
      self._returns[env_id] = returns
      self._lengths[env_id] = lengths

  def so_far(self, env_id: int) -> tuple[float, int]:
    """Returns return and length of an environment's current episode."""
    return float(self._returns[env_id]), max(0, int(self._lengths[env_id]))

  def _end(
    self,
    env_id: np.ndarray,
    returns: np.ndarray,
    lengths: np.ndarray,
    last: np.ndarray,
    truncated: np.ndarray,
    over: np.ndarray | None,
  ) -> None:
    """Logs ended episodes and resets their `returns` and `lengths`."""
    rows = np.flatnonzero(last if over is None else last & over)
    if over is not None:
      # The FIRST after a lost life is no step either.
      lengths[last] -= 1
    if not len(rows):
      return
    length = lengths[rows] + (over is not None)
    self.log.append(
      EndedEpisodes(
        env_id[rows],
        returns[rows],
        length,
        length * self._action_repeat,
        ~truncated[rows],
      )
    )
    lengths[rows] = -1
    returns[rows] = 0.0
