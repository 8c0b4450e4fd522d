"""Interface between environments and what acts in them; needs no JAX."""

import abc
from typing import NamedTuple

import numpy as np

from seedrl_jax import types

_NONE = np.zeros(0, np.int32)
_NONE.setflags(write=False)


class StreamClosed(Exception):
  """The stream is closed."""


class EnvironmentFailed(ValueError):
  """An environment failed or returned an invalid value."""


class StreamSpec(NamedTuple):
  """What one environment of a stream looks like.

  Attributes:
    observation: nest of `types.ArraySpec`; dicts have sorted keys.
    action_repeat: frames per step.
  """

  observation: types.Nest
  action: types.ActionSpec
  action_repeat: int
  name: str


def check_action(
  spec: types.ActionSpec, action: np.ndarray, env_id: np.ndarray
) -> None:
  """Raises ValueError if shapes do not fit each other or the spec."""
  if env_id.ndim != 1 or action.shape != (len(env_id), *spec.shape):
    raise ValueError(
      f'action {action.shape} and env_id {env_id.shape} must be '
      f'{["B", *spec.shape]} and [B].'.replace("'", '')
    )


def as_slice(index: np.ndarray) -> slice | np.ndarray:
  """Returns indices `[n]`, `n` > 0, as a (faster) slice if consecutive."""
  first, n = int(index[0]), len(index)
  # Comparing bytes is much cheaper than comparing arrays.
  consecutive = np.arange(first, first + n, dtype=index.dtype).tobytes()
  return slice(first, first + n) if index.tobytes() == consecutive else index


class Episode(NamedTuple):
  """One finished episode.

  Attributes:
    episode_return: undiscounted sum of the raw, unclipped rewards.
    length: agent steps, without the reset pseudo-step.
    frames: `length` times the action repeat.
    terminated: False if the episode was truncated.
  """

  env_id: int
  episode_return: float
  length: int
  frames: int
  terminated: bool


class EnvStream(abc.ABC):
  """Environments that emit observations and wait for actions.

  All environments reset when the stream is made, so the first outputs are FIRST
  steps. One thread may receive while another sends.

  Attributes:
    num_envs: environments of this stream; their ids are `[0, num_envs)`.
    batch_size: the most environments in one `recv`.
  """

  spec: StreamSpec
  num_envs: int
  batch_size: int

  @property
  def min_batch_size(self) -> int:
    """The fewest environments in one `recv`."""
    return self.batch_size

  @abc.abstractmethod
  def recv(self) -> types.EnvOutput:
    """Waits for the next `min_batch_size` to `batch_size` steps.

    A batch needs enough environments that have their actions, so a caller that
    neither sends nor closes waits for ever. The step after LAST is the next
    episode's FIRST, whatever action was sent: that pair is no transition. The
    caller owns the arrays.

    Raises:
      StreamClosed: if the stream is closed, also while waiting.
    """

  def take_dropped(self) -> np.ndarray:
    """Returns ids, int32 `[m]`, that disconnected before the last `recv`.

    Their episodes have no end: drop their half-built unrolls. An id in that
    `recv` already belongs to a new environment. Only the receiving thread may
    call this. Local environments never disconnect.
    """
    return _NONE

  @abc.abstractmethod
  def send(self, action: np.ndarray, env_id: np.ndarray) -> None:
    """Sends actions to environments that were received.

    Args:
      action: `[B, ...]` as `spec.action` says; copied.
      env_id: int32 `[B]`, unique; none has had an action since its last `recv`.

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
    """Episodes that were discarded because they were not taken in time."""

  @abc.abstractmethod
  def close(self) -> None:
    """Closes the stream and wakes a waiting `recv`; idempotent.

    A `recv` that waits for environments to step returns once they have.
    """
