"""Wrappers of streams that count and film episodes."""

from collections.abc import Sequence

import numpy as np

from seedrl_jax import types
from seedrl_jax.envs import base as envs
from seedrl_jax.evaluation import video


class EpisodeQuota:
  """Collects a fixed number of episodes from each environment.

  Taking those that end first would favour short ones.
  """

  def __init__(self, episodes: int, num_envs: int):
    """Divides `episodes` over environments as evenly as possible."""
    self.total = episodes
    self.episodes: list[envs.Episode] = []
    self._missing = [
      episodes // num_envs + (i < episodes % num_envs) for i in range(num_envs)
    ]

  @property
  def is_met(self) -> bool:
    """Whether all episodes have ended."""
    return len(self.episodes) == self.total

  def wants(self, env_id: int) -> bool:
    """Returns whether the environment's next episode counts."""
    return self._missing[env_id] > 0

  def add(self, episodes: Sequence[envs.Episode]) -> None:
    """Adds the episodes that count; each environment's come in order."""
    for episode in episodes:
      if self.wants(episode.env_id):
        self._missing[episode.env_id] -= 1
        self.episodes.append(episode)


class WrappedStream(envs.EnvStream):
  """A stream that forwards to another one."""

  def __init__(self, stream: envs.EnvStream):
    self.spec = stream.spec
    self.num_envs = stream.num_envs
    self.batch_size = stream.batch_size
    self._stream = stream

  @property
  def min_batch_size(self) -> int:
    return self._stream.min_batch_size

  def recv(self) -> types.EnvOutput:
    return self._stream.recv()

  def take_dropped(self) -> np.ndarray:
    return self._stream.take_dropped()

  def send(self, action: np.ndarray, env_id: np.ndarray) -> None:
    self._stream.send(action, env_id)

  def take_episodes(self) -> list[envs.Episode]:
    return self._stream.take_episodes()

  def close(self) -> None:
    self._stream.close()


class ObservedStream(WrappedStream):
  """Counts episodes, and films environment 0 while its episodes count."""

  def __init__(
    self,
    stream: envs.EnvStream,
    quota: EpisodeQuota,
    recorder: video.VideoRecorder | None = None,
  ):
    super().__init__(stream)
    self._quota = quota
    self._recorder = recorder

  def recv(self) -> types.EnvOutput:
    output = self._stream.recv()
    ended = self._stream.take_episodes()
    shown = self._quota.wants(0)
    self._quota.add(ended)
    if self._recorder is not None and shown:
      self._recorder.record(output, ended)
    return output

  def take_episodes(self) -> list[envs.Episode]:
    """Returns nothing: the quota has taken them."""
    return []

  def close(self) -> None:
    """See `EnvStream.close`; completes the video."""
    self._stream.close()
    if self._recorder is not None:
      self._recorder.close()
