"""Environments of remote actors, as an `EnvStream` of the learner."""

import collections
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from seedrl_jax import types
from seedrl_jax.actors import wire
from seedrl_jax.envs import base
from seedrl_jax.runtime import nest

_FIRST, _LAST = int(types.StepType.FIRST), int(types.StepType.LAST)

# Takes the actions [n, ...] of a message's environments, in its order; runs in
# the thread that calls `send`.
Answer = Callable[[np.ndarray], None]


class GroupLease:
  """The slots of a group, from its joining to its leaving.

  Nothing that passes its checks can harm the unrolls of other environments.
  """

  def __init__(self, env_id: np.ndarray, acts_itself: bool = False):
    """Expects FIRST steps first."""
    self.acts_itself = acts_itself  # whether its actor only sends reports
    self.env_id = np.asarray(env_id, np.int32)  # `[n]`, ids in the stream
    # The types of the last steps.
    self._before = np.full(len(env_id), _LAST, np.uint8)

  def accept(self, leaves: list[np.ndarray]) -> None:
    """Checks a group's next STEPS; raises `WireError` if it is impossible."""
    *observation, reward, discount, step_type = leaves
    if len(reward) != len(self.env_id):
      raise wire.WireError(
        f'STEPS of {len(reward)} environments came from a group of '
        f'{len(self.env_id)}.'
      )
    for leaf in observation:
      _check_values(leaf, 'An observation')
    _check_values(reward, 'A reward')
    if not ((discount >= 0) & (discount <= 1)).all():
      raise wire.WireError('A discount is not in [0, 1].')
    if (step_type > _LAST).any():
      raise wire.WireError('There is no such type of step.')
    # FIRST may be repeated (see `types.DeviceEnv`).
    impossible = (step_type == _FIRST) != (self._before == _LAST)
    if (impossible & (self._before != _FIRST)).any():
      raise wire.WireError(
        'A FIRST step must come after the end of an episode, and only there.'
      )
    self._before = step_type.copy()


def _check_values(array: np.ndarray, name: str) -> None:
  """Checks that bytes are values of their dtype, finite and not too large."""
  if array.dtype.kind == 'b' and (array.view(np.uint8) > 1).any():
    raise wire.WireError('A boolean is neither 0 nor 1.')
  if array.dtype.kind != 'f' and array.dtype.itemsize <= 2:
    return
  # Python's numbers: 1e6 is infinite as float16, and the smallest integer has
  # no absolute value. NaN fails both comparisons.
  largest, least = array.max(initial=0).item(), array.min(initial=0).item()
  if not (largest <= wire.LARGEST and least >= -wire.LARGEST):
    raise wire.WireError(
      f'{name} is not a number from {-wire.LARGEST:,.0f} to '
      f'{wire.LARGEST:,.0f}; scale it in the environment.'
    )


class _Request(NamedTuple):
  """A step of each environment of a group; leaves are those of an EnvOutput."""

  lease: GroupLease
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
    self.min_batch_size = 1  # as a group may have one environment
    self._enough = min_batch_size
    self._timeout = timeout
    self._episodes = base.EpisodeLog()
    # Guards the attributes below.
    self._changed = threading.Condition()
    self._closed = False
    self._failure: BaseException | None = None
    self._leases: set[GroupLease] = set()
    self._free = np.ones(num_envs, bool)
    self._num_expected = 0  # environments whose steps may come
    self._waiting: collections.deque[_Request] = collections.deque()
    # The last batch received, until its actions are sent.
    self._taken: list[_Request] = []
    # Ids that left since, and before, the last batch was received.
    self._left: list[np.ndarray] = []
    self._dropped = base.NO_IDS

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
    dropped, self._dropped = self._dropped, base.NO_IDS
    return dropped

  def send(self, action: np.ndarray, env_id: np.ndarray) -> None:
    """Answers the last batch, in its order; skips actors that have left."""
    base.check_action(self.spec.action, action, env_id)
    with self._changed:
      self._check_open()
      taken, self._taken = self._taken, []
    ids = np.concatenate([base.NO_IDS, *(r.lease.env_id for r in taken)])
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

  def join(self, num_envs: int, acts_itself: bool = False) -> GroupLease | None:
    """Leases slots to a group until `leave`; None if there is no room.

    A group that acts itself will not `submit`.
    """
    with self._changed:
      slots = np.flatnonzero(self._free)[:num_envs]
      if len(slots) < num_envs:
        return None
      self._free[slots] = False
      lease = GroupLease(slots, acts_itself)
      self._leases.add(lease)
      if not acts_itself:
        self._num_expected += num_envs
    return lease

  def submit(
    self,
    lease: GroupLease,
    leaves: list[np.ndarray],
    episodes: np.ndarray,
    answer: Answer,
  ) -> None:
    """Takes a group's steps; raises `WireError` if they are invalid.

    `leaves` and `episodes` are as `StreamCodec.unpack_steps` returns them.
    """
    lease.accept(leaves)
    self.add_episodes(lease, episodes, len(lease.env_id))
    leaves = [*leaves, lease.env_id]
    request = _Request(lease, leaves, answer, time.monotonic())
    with self._changed:
      if lease in self._leases:
        self._waiting.append(request)
        self._changed.notify()

  def add_episodes(
    self, lease: GroupLease, episodes: np.ndarray, num_steps: int
  ) -> None:
    """Logs a group's episodes, whose ids are within the group.

    Raises `WireError` if they cannot have ended in `num_steps` steps.
    """
    if not len(episodes):
      return
    if len(episodes) > num_steps:
      raise wire.WireError(
        f'{len(episodes)} episodes cannot end in {num_steps} steps.'
      )
    local_id, task = episodes['env_id'], episodes['task']
    if not ((local_id >= 0) & (local_id < len(lease.env_id))).all():
      raise wire.WireError('An episode is of no environment of the group.')
    if not ((task >= 0) & (task < max(1, len(self.spec.tasks)))).all():
      raise wire.WireError('An episode is of no task of the run.')
    bound = wire.LARGEST * episodes['length']
    if not (np.abs(episodes['episode_return']) <= bound).all():
      raise wire.WireError("An episode's return is not possible.")
    _check_values(episodes['terminated'], "An episode's end")
    # Views would keep the whole message.
    columns = [episodes[name].copy() for name in base.Episode._fields[1:]]
    self._episodes.append((lease.env_id[local_id], *columns))

  def leave(self, lease: GroupLease) -> None:
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
