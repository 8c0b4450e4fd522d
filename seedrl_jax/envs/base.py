"""The seam between environments and everything that acts in them.

`inference` drives an `EnvStream` without knowing whether the environments run
in this process (`envpool_stream`, `gymnasium_stream`) or in remote actors.
Nothing here imports JAX: remote actors run without it.
"""

import abc
from typing import NamedTuple

import numpy as np

from seedrl_jax import types

_NONE = np.zeros(0, np.int32)
_NONE.setflags(write=False)


class StreamClosed(Exception):
  """The stream was closed; there is nothing more to receive or to send."""


class EnvironmentFailed(ValueError):
  """An environment failed, or gave what cannot be; the message says it all."""


class StreamSpec(NamedTuple):
  """What one environment of a stream looks like.

  Attributes:
    observation: nest of `types.ArraySpec`; dicts have sorted keys.
    action: what an environment takes.
    action_repeat: frames that one step takes.
    name: the environment's name, for messages.
  """

  observation: types.Nest
  action: types.ActionSpec
  action_repeat: int
  name: str


def check_action(
  spec: types.ActionSpec, action: np.ndarray, env_id: np.ndarray
) -> None:
  """Checks the shapes of what a stream is sent.

  Raises:
    ValueError: if they do not fit each other or the spec.
  """
  if env_id.ndim != 1 or action.shape != (len(env_id), *spec.shape):
    raise ValueError(
      f'action {action.shape} and env_id {env_id.shape} must be '
      f'{["B", *spec.shape]} and [B].'.replace("'", '')
    )


def as_slice(index: np.ndarray) -> slice | np.ndarray:
  """Returns indices `[n]`, `n` > 0, as a slice if they are consecutive.

  That is several times cheaper: it gives views, and copies are plain.
  """
  first, n = int(index[0]), len(index)
  # Comparing bytes costs a fraction of comparing arrays.
  consecutive = np.arange(first, first + n, dtype=index.dtype).tobytes()
  return slice(first, first + n) if index.tobytes() == consecutive else index


class Episode(NamedTuple):
  """One finished episode, scored as evaluations do.

  Attributes:
    env_id: which of the stream's environments.
    episode_return: undiscounted sum of the raw, unclipped rewards.
    length: agent steps, without the reset pseudo-step.
    frames: `length` times the action repeat.
    terminated: whether the episode terminated, rather than was truncated.
  """

  env_id: int
  episode_return: float
  length: int
  frames: int
  terminated: bool


class EnvStream(abc.ABC):
  """Environments that hand out observations and wait for actions.

  All environments reset when the stream is made, so the first outputs are
  FIRST steps. One thread may receive while another sends.

  Attributes:
    spec: what one environment looks like.
    num_envs: environments of this stream; their ids are `[0, num_envs)`.
    batch_size: the most environments that one `recv` gives.
  """

  spec: StreamSpec
  num_envs: int
  batch_size: int

  @property
  def min_batch_size(self) -> int:
    """The fewest environments that one `recv` gives."""
    return self.batch_size

  @abc.abstractmethod
  def recv(self) -> types.EnvOutput:
    """Waits for the next batch of steps.

    A batch waits until enough environments have their actions, so a caller
    that neither sends nor closes waits for ever. The step after a LAST one is
    the next episode's FIRST, whatever action was sent: that pair is no
    transition. The arrays belong to the caller.

    Returns:
      `types.EnvOutput` with B of `min_batch_size` to `batch_size` rows.

    Raises:
      StreamClosed: if the stream is closed, also while waiting.
    """

  def take_dropped(self) -> np.ndarray:
    """Returns the environments that went away before the last `recv`.

    What they were doing is over, without an end of their episodes: unrolls of
    theirs that are half-built must be dropped. An id in the batch of that
    `recv` is a new environment's already. For the thread that receives.

    Returns:
      int32 `[m]`, each once told; those of this process never go away.
    """
    return _NONE

  @abc.abstractmethod
  def send(self, action: np.ndarray, env_id: np.ndarray) -> None:
    """Gives received environments their actions.

    Args:
      action: `[B, ...]` as `spec.action` says; copied, so that the caller
        may use the array again at once.
      env_id: int32 `[B]`, environments that were received and have had no
        action since, each at most once.

    Raises:
      StreamClosed: if the stream is closed.
      ValueError: if the arrays do not fit each other or the stream.
    """

  @abc.abstractmethod
  def take_episodes(self) -> list[Episode]:
    """Returns the episodes that ended since the last call, oldest first."""

  @property
  @abc.abstractmethod
  def dropped_episodes(self) -> int:
    """How many episodes were lost because nobody took them in time."""

  @abc.abstractmethod
  def close(self) -> None:
    """Ends the stream and wakes a waiting `recv`; may be called again.

    A `recv` that already waits for environments to finish stepping ends as
    soon as they have.
    """
