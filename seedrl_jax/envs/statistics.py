"""Scores of episodes, counted beside the stream that the agent sees.

Streams call `EpisodeStatistics.update` for every batch; remote actors' side
in the learner keeps an `EpisodeLog` of what the actors report.
"""

import collections
import threading
from collections.abc import Iterable

import numpy as np

from seedrl_jax.envs import base, batch_index


class EpisodeLog:
  """A bounded, thread-safe list of finished episodes."""

  def __init__(self, max_size: int = 10_000):
    """Keeps the newest `max_size` episodes until they are taken."""
    self._lock = threading.Lock()
    self._episodes: collections.deque[base.Episode] = collections.deque(
      maxlen=max_size
    )
    self._max_size = max_size
    self._dropped = 0

  @property
  def dropped(self) -> int:
    """Episodes that newer ones pushed out before they were taken."""
    return self._dropped

  def extend(self, episodes: Iterable[base.Episode]) -> None:
    """Adds episodes, oldest first."""
    with self._lock:
      for episode in episodes:
        self._dropped += len(self._episodes) == self._max_size
        self._episodes.append(episode)

  def take(self) -> list[base.Episode]:
    """Returns and forgets what was added since the last call."""
    with self._lock:
      episodes = list(self._episodes)
      self._episodes.clear()
    return episodes


class EpisodeStatistics:
  """Adds up rewards and steps of every environment of a stream.

  Works on whole batches; only episodes that ended are looked at one by one.
  """

  def __init__(
    self, num_envs: int, action_repeat: int, log: EpisodeLog | None = None
  ):
    """Starts before the first FIRST step of every environment.

    Args:
      num_envs: ids are `[0, num_envs)`.
      action_repeat: frames that one step takes.
      log: where finished episodes go; a new one by default.
    """
    self.log = EpisodeLog() if log is None else log
    self._action_repeat = action_repeat
    self._index = batch_index.BatchIndex()
    self._returns = np.zeros(num_envs, np.float64)
    # FIRST is no step: counting starts at -1, which saves a mask per batch.
    self._lengths = np.full(num_envs, -1, np.int64)

  def update(
    self,
    env_id: np.ndarray,
    reward: np.ndarray,
    last: np.ndarray,
    truncated: np.ndarray,
    over: np.ndarray | None = None,
  ) -> None:
    """Accounts for one batch of steps.

    Args:
      env_id: int32 `[B]`, unique.
      reward: float32 `[B]`, the raw score; 0 at FIRST.
      last: bool `[B]`, where the learner's episode ends.
      truncated: bool `[B]`, where it ends without having terminated.
      over: bool `[B]`, where the real episode ends, if `last` ends more (a
        lost life in Atari); None where `last` says it all.
    """
    index = self._index(env_id)
    returns = self._returns[index]
    returns += reward
    lengths = self._lengths[index]
    lengths += 1
    if np.count_nonzero(last):
      ended = last if over is None else last & over
      self._record(np.flatnonzero(ended), env_id, returns, lengths, truncated)
      # The FIRST that follows a lost life must not count as a step either.
      lengths[last] -= 1
      lengths[ended] = -1
      returns[ended] = 0.0
    # A slice's views were changed in place.
    if index is env_id:
      self._returns[env_id] = returns
      self._lengths[env_id] = lengths

  def so_far(self, env_id: int) -> tuple[float, int]:
    """Returns return and length of an environment's episode under way."""
    return float(self._returns[env_id]), max(0, int(self._lengths[env_id]))

  def _record(
    self,
    rows: np.ndarray,
    env_id: np.ndarray,
    returns: np.ndarray,
    lengths: np.ndarray,
    truncated: np.ndarray,
  ) -> None:
    columns = (x[rows].tolist() for x in (env_id, returns, lengths, truncated))
    self.log.extend(
      base.Episode(i, total, length, length * self._action_repeat, not cut)
      for i, total, length, cut in zip(*columns, strict=True)
    )
