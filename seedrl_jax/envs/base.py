"""Interface between environments and what acts in them; needs no JAX."""

import abc
import collections
import math
import threading
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from seedrl_jax import types
from seedrl_jax.envs import action_masks, step_checks

NO_IDS = np.zeros(0, np.int32)
NO_IDS.setflags(write=False)
# Batches with finished episodes that wait to be taken.
_MOST_BATCHES = 10_000


class StreamClosed(Exception):
  """The stream is closed."""


class EnvironmentFailed(types.Explained, ValueError):
  """An environment failed or returned an invalid value."""


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
  """One finished episode."""

  env_id: int
  episode_return: float  # undiscounted sum of the raw, unclipped rewards
  length: int  # agent steps, without the reset pseudo-step
  terminated: bool  # False if the episode was truncated
  task: int = 0  # index into `spec.tasks`; 0 if there are none


# `Episode` as an element of an array, in messages.
EPISODE = np.dtype([
  ('env_id', '<i4'),
  ('episode_return', '<f8'),
  ('length', '<u4'),
  ('terminated', '?'),
  ('task', '<i4'),
])


class EpisodeLog:
  """A bounded list of finished episodes; the oldest batch may have to go.

  Any thread may `append` arrays `[n]`, one for each field of `Episode`; one may
  `take`.
  """

  def __init__(self) -> None:
    batches = collections.deque[Sequence[np.ndarray]](maxlen=_MOST_BATCHES)
    self._batches = batches
    self.append = batches.append

  def take(self) -> list[Episode]:
    """Removes and returns all episodes, oldest first."""
    episodes: list[Episode] = []
    for _ in range(len(self._batches)):
      columns = (column.tolist() for column in self._batches.popleft())
      episodes += map(Episode, *columns)
    return episodes


class EnvStream(abc.ABC):
  """Environments that emit observations and wait for actions.

  All environments reset when the stream is made, so the first outputs are FIRST
  steps. One thread may receive while another sends.
  """

  spec: types.StreamSpec
  num_envs: int  # their ids are `[0, num_envs)`
  batch_size: int  # the most environments in one `recv`
  min_batch_size: int  # the fewest

  @abc.abstractmethod
  def recv(self) -> types.EnvOutput:
    """Waits for the next `min_batch_size` to `batch_size` steps.

    A batch needs enough environments that have their actions, so a caller that
    neither sends nor closes waits for ever. The step after LAST is the next
    episode's FIRST, whatever action was sent: that pair is no transition. The
    caller owns the arrays.

    Raises StreamClosed if the stream is closed, also while waiting.
    """

  def take_dropped(self) -> np.ndarray:
    """Returns ids, int32 `[m]`, that disconnected before the last `recv`.

    Their episodes have no end: drop their half-built unrolls. An id in that
    `recv` already belongs to a new environment. Only the receiving thread may
    call this. Local environments never disconnect.
    """
    return NO_IDS

  @abc.abstractmethod
  def send(self, action: np.ndarray, env_id: np.ndarray) -> None:
    """Sends actions to environments that were received.

    Args:
      action: `[B, ...]` as `spec.action` says; copied.
      env_id: int32 `[B]`, unique; none has had an action since its last `recv`.

    Raises StreamClosed if the stream is closed, and ValueError if the arrays do
    not fit each other or the stream.
    """

  @abc.abstractmethod
  def take_episodes(self) -> list[Episode]:
    """Returns the episodes that ended since the last call, oldest first.

    If nobody takes them, the oldest are lost.
    """

  def interrupt(self) -> None:
    """Wakes a waiting `recv`, which raises StreamClosed; returns at once.

    Environments may close at once.
    """
    self.close()

  @abc.abstractmethod
  def close(self) -> None:
    """Closes the stream and wakes a waiting `recv`; idempotent.

    Raises EnvironmentFailed if an environment hangs; the first call does.
    """


class EpisodeStatistics:
  """Sums rewards and steps of each environment of a stream."""

  def __init__(self, tasks: np.ndarray):
    """`tasks`, int `[N]`, are those of the environments."""
    num_envs = len(tasks)
    self.log = EpisodeLog()
    self._tasks = tasks
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
    index = as_slice(env_id)
    returns = self._returns[index]
    returns += reward
    lengths = self._lengths[index]
    lengths += 1
    if np.count_nonzero(last):
      if over is not None:
        # The FIRST after a lost life is no step either.
        lengths[last] -= 1
      rows = np.flatnonzero(last if over is None else last & over)
      if len(rows):
        ids = env_id[rows]
        length = lengths[rows] + (over is not None)
        terminated, task = ~truncated[rows], self._tasks[ids]
        self.log.append((ids, returns[rows], length, terminated, task))
      lengths[rows] = -1
      returns[rows] = 0.0
    # Slices are views, changed in place.
    if index is env_id:
      self._returns[env_id] = returns
      self._lengths[env_id] = lengths

  def restart(self, first: np.ndarray) -> None:
    """Notes which environments, bool `[N]`, may repeat FIRST: no step yet."""
    self._lengths[first] = 0

  def so_far(self, env_id: int) -> Episode:
    """Returns an environment's current episode, as if it were truncated."""
    score, task = float(self._returns[env_id]), int(self._tasks[env_id])
    length = max(0, int(self._lengths[env_id]))
    return Episode(env_id, score, length, terminated=False, task=task)


class LocalStream(EnvStream):
  """Base class of local streams: statistics, action clipping and closing.

  Actions are clipped to the bounds of `spec.action` for the environments only,
  not in what is recorded.
  """

  steps_per_second = 30.0  # playback speed for human viewers
  needs_choice = True  # whether steps other than LAST must have a legal choice

  def __init__(
    self,
    spec: types.StreamSpec,
    action_dtype: np.dtype,
    num_envs: int,
    batch_size: int,
    tasks: np.ndarray | None = None,
  ):
    """`action_dtype` is of environments; `tasks` are int `[num_envs]`."""
    self.spec = spec
    # Indices into `spec.tasks`; zeros if there are none.
    self.tasks = np.zeros(num_envs, np.int32) if tasks is None else tasks
    self._action_dtype = action_dtype
    action = spec.action
    self._bounds = None
    if not action.is_discrete:
      self._bounds = tuple(
        np.reshape(bound, action.shape).astype(action_dtype)
        for bound in (action.minimum, action.maximum)
      )
    self.num_envs = num_envs
    self.batch_size = self.min_batch_size = batch_size
    self._statistics = EpisodeStatistics(self.tasks)
    # Guards `_closed` and the conditions for which a subclass's `recv` waits.
    self._changed = threading.Condition()
    self._closed = False

  def take_episodes(self) -> list[Episode]:
    return self._statistics.log.take()

  def interrupt(self) -> None:
    """See `EnvStream.interrupt`; a signal handler may call it."""
    with self._changed:
      self._closed = True
      self._changed.notify_all()

  def close(self) -> None:
    self.interrupt()

  def render(self, env_id: int) -> np.ndarray | None:
    """Draws an environment as last received, before its next action is sent.

    Returns uint8 RGB `[H, W, 3]`; None if not `rendered` or without drawing.

    Raises registry.MissingLibraryError if a library for it is missing.
    """
    del env_id
    return None

  def episode_so_far(self, env_id: int) -> Episode:
    """Returns the episode under way, truncated; of length 0 at its end."""
    return self._statistics.so_far(env_id)

  def _check_open(self) -> None:
    if self._closed:
      raise StreamClosed(f'The stream of {self.spec.name} is closed.')

  def _failure(self, env_id: int, text: object) -> EnvironmentFailed:
    """Returns the error of an environment; `text` begins with a verb."""
    return EnvironmentFailed(f'Environment {env_id} of {self.spec.name} {text}')

  def _env_action(self, action: np.ndarray, env_id: np.ndarray) -> np.ndarray:
    check_action(self.spec.action, action, env_id)
    action = np.array(action, self._action_dtype, order='C')
    if self._bounds is not None:
      np.clip(action, *self._bounds, out=action)
    return action

  def _check_rewards(self, reward: np.ndarray, env_id: np.ndarray) -> None:
    # One fast call; NaN is not less.
    if np.vdot(reward, reward) <= step_checks.LARGEST_REWARD**2:
      return
    for i, value in zip(env_id, reward, strict=True):
      try:
        step_checks.reward(value)
      except step_checks.InvalidStep as e:
        raise self._failure(i, e) from e

  def _check_choices(
    self, observation: types.Nest, exempt: np.ndarray, env_id: np.ndarray
  ) -> None:
    """Checks that rows `[B]` have a legal choice, except at `exempt`: LAST."""
    if not (self.spec.action_mask and self.needs_choice):
      return
    lacking = action_masks.lacks_choice(self.spec, observation) & ~exempt
    if lacking.any():
      raise self._failure(env_id[np.argmax(lacking)], action_masks.NO_CHOICE)

  def _check_finite(
    self, leaves: Iterable[np.ndarray], env_id: np.ndarray
  ) -> None:
    for x in leaves:
      # One fast call; it may overflow, so check again.
      if (
        x.dtype.kind != 'f'
        or math.isfinite(np.vdot(x, x))
        or (finite := np.isfinite(x)).all()
      ):
        continue
      row = int(np.argmin(finite.reshape(len(x), -1).all(axis=1)))
      raise self._failure(
        env_id[row],
        'gave an observation that is not finite '
        f'({x[row][~finite[row]].flat[0]}): correct the environment.',
      )
