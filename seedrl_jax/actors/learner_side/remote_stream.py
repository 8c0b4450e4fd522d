"""Environments of remote actors, as an `EnvStream` of the learner."""

import collections
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from seedrl_jax import types
from seedrl_jax.actors import wire
from seedrl_jax.actors.learner_side import group_lease
from seedrl_jax.envs import base
from seedrl_jax.runtime import nest

_NO_ID = np.zeros(0, np.int32)

# Takes the actions [n, ...] of a message's environments, in its order; runs in
# the thread that calls `send`.
Answer = Callable[[np.ndarray], None]


class _Request(NamedTuple):
  """A step of each environment of a group; leaves are those of an EnvOutput."""

  lease: group_lease.GroupLease
  leaves: list[np.ndarray]
  answer: Answer
  arrival: float


class RemoteStream(base.EnvStream):
  """Batches the steps of up to `num_envs` remote environments.

  A batch goes out if it has the minimum size, if no other environment can join
  it, or if its first steps have waited long enough: it never waits for one slow
  actor.
  """

  def __init__(
    self,
    spec: types.StreamSpec,
    num_envs: int,
    batch_size: int,
    min_batch_size: int,
    timeout: float,
  ):
    """Makes a stream of `num_envs` free slots.

    `batch_size` is the most environments in one `recv`, and in a group;
    `min_batch_size` make a batch at once, after `timeout` seconds fewer do.
    """
    if not 1 <= min_batch_size <= batch_size <= num_envs:
      raise ValueError(
        f'--config.actors.min_batch_size={min_batch_size} and '
        f'--config.actors.batch_size={batch_size} must be in this order, and '
        f'between 1 and the {num_envs} remote environments of a stream.'
      )
    self.spec = spec
    self.num_envs = num_envs
    self.batch_size = batch_size
    self._enough = min_batch_size
    self._timeout = timeout
    self._episodes = base.EpisodeLog()
    # Guards the attributes below.
    self._changed = threading.Condition()
    self._closed = False
    self._failure: BaseException | None = None
    self._leases: set[group_lease.GroupLease] = set()
    self._free = np.ones(num_envs, bool)
    self._num_expected = 0  # environments whose steps may come
    self._waiting: collections.deque[_Request] = collections.deque()
    # The last batch received, until its actions are sent.
    self._taken: list[_Request] = []
    # Ids that left since, and before, the last batch was received.
    self._left: list[np.ndarray] = []
    self._dropped = _NO_ID

  @property
  def min_batch_size(self) -> int:
    """Always 1, as a group may have one environment."""
    return 1

  @property
  def num_connected(self) -> int:
    """Number of environments that actors have brought."""
    return self.num_envs - self.num_free

  @property
  def num_free(self) -> int:
    with self._changed:
      return int(np.count_nonzero(self._free))

  # -- for the inference worker ----------------------------------------------

  def recv(self) -> types.EnvOutput:
    """See `EnvStream.recv`; waits while there are no actors."""
    with self._changed:
      while (seconds := self._seconds_left()) != 0:
        self._check_open()
        self._changed.wait(seconds)
      self._check_open()
      # The oldest requests that fit a batch.
      self._taken = taken = []
      room = self.batch_size
      while self._waiting and len(self._waiting[0].lease.env_id) <= room:
        taken.append(self._waiting.popleft())
        room -= len(taken[-1].lease.env_id)
      if self._left:
        # Some may have joined and left again since the last batch.
        self._dropped = np.unique(np.concatenate(self._left))
        self._left.clear()
    columns = zip(*(request.leaves for request in taken), strict=True)
    *leaves, reward, discount, step_type, env_id = map(np.concatenate, columns)
    observation = nest.unflatten(self.spec.observation, leaves)
    return types.EnvOutput(observation, reward, discount, step_type, env_id)

  def take_dropped(self) -> np.ndarray:
    dropped, self._dropped = self._dropped, _NO_ID
    return dropped

  def send(self, action: np.ndarray, env_id: np.ndarray) -> None:
    """Answers the last batch, in its order; skips actors that have left."""
    base.check_action(self.spec.action, action, env_id)
    with self._changed:
      self._check_open()
      taken, self._taken = self._taken, []
    ids = np.concatenate([_NO_ID, *(r.lease.env_id for r in taken)])
    if not np.array_equal(env_id, ids):
      raise ValueError('Actions must be those of the last batch, in its order.')
    # A copy, as answers are sent later.
    action = np.array(action, self.spec.action.dtype)
    for request in taken:
      size = len(request.lease.env_id)
      request.answer(action[:size])
      action = action[size:]

  def take_episodes(self) -> list[base.Episode]:
    return self._episodes.take()

  def close(self, failure: BaseException | None = None) -> None:
    """See `EnvStream.close`; `recv` and `send` raise a server's `failure`."""
    with self._changed:
      self._failure = self._failure or failure
      self._closed = True
      self._changed.notify_all()

  def _check_open(self) -> None:
    if self._failure is not None:
      raise self._failure
    if self._closed:
      raise base.StreamClosed(f'The stream of {self.spec.name} is closed.')

  def _seconds_left(self) -> float | None:
    """Returns the seconds until a batch is due; None if no steps wait."""
    if not self._waiting:
      return None
    enough = min(self._enough, self._num_expected)
    if sum(len(request.lease.env_id) for request in self._waiting) >= enough:
      return 0
    return max(0, self._waiting[0].arrival + self._timeout - time.monotonic())

  # -- for the server ----------------------------------------------------------

  def join(
    self, num_envs: int, acts_itself: bool = False
  ) -> group_lease.GroupLease | None:
    """Leases slots to a group until `leave`; None if there is no room.

    A group that acts itself will not `submit`.
    """
    with self._changed:
      slots = np.flatnonzero(self._free)[:num_envs]
      if len(slots) < num_envs:
        return None
      self._free[slots] = False
      lease = group_lease.GroupLease(slots, acts_itself)
      self._leases.add(lease)
      if not acts_itself:
        self._num_expected += num_envs
    return lease

  def submit(
    self,
    lease: group_lease.GroupLease,
    sequence: int,
    leaves: list[np.ndarray],
    episodes: base.EndedEpisodes,
    answer: Answer,
  ) -> None:
    """Takes a group's steps; raises `WireError` if they are invalid.

    `leaves` and `episodes` are as `StreamCodec.unpack_steps` returns them.
    """
    lease.accept(sequence, leaves, episodes)
    self.add_episodes(lease, episodes)
    leaves = [*leaves, lease.env_id]
    request = _Request(lease, leaves, answer, time.monotonic())
    with self._changed:
      if lease in self._leases:
        self._waiting.append(request)
        self._changed.notify()

  def add_episodes(
    self, lease: group_lease.GroupLease, episodes: base.EndedEpisodes
  ) -> None:
    """Logs a group's episodes, whose ids are within the group.

    Raises `WireError` if one is of an unknown task.
    """
    if len(episodes.env_id):
      num_tasks = max(1, len(self.spec.tasks))
      if not ((episodes.task >= 0) & (episodes.task < num_tasks)).all():
        raise wire.WireError('An episode is of no task of the run.')
      env_id = lease.env_id[episodes.env_id]
      # Copies, as a view would keep the whole message.
      columns = map(np.copy, episodes._replace(env_id=env_id))
      self._episodes.append(base.EndedEpisodes(*columns))

  def leave(self, lease: group_lease.GroupLease) -> None:
    """Frees a group's slots; drops its steps that were not received yet."""
    with self._changed:
      if lease not in self._leases:
        return
      self._leases.remove(lease)
      self._free[lease.env_id] = True
      if lease.acts_itself:
        # Inference holds nothing of it.
        return
      self._num_expected -= len(lease.env_id)
      others = (r for r in self._waiting if r.lease is not lease)
      self._waiting = collections.deque(others)
      self._left.append(lease.env_id)
      # A batch may have waited for these environments only.
      self._changed.notify()
