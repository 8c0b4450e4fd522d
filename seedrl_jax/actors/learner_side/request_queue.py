"""Steps of remote environments that wait for inference or for actions."""

import collections
import dataclasses
import time
from collections.abc import Callable

import numpy as np

from seedrl_jax import types
from seedrl_jax.actors.learner_side import group_lease

# Takes the actions [n, ...] of a message's environments, in its order; runs in
# the thread that calls `send`.
Answer = Callable[[np.ndarray], None]

_NO_REQUEST = -1


@dataclasses.dataclass(eq=False)
class StepRequest:
  """Steps of one message; `num_missing` of `[n]` have no action yet."""

  lease: group_lease.GroupLease
  leaves: list[np.ndarray]
  env_id: np.ndarray
  answer: Answer
  arrival: float
  num_missing: int


class RequestQueue:
  """Batches requests and collects their actions; not thread-safe."""

  def __init__(
    self,
    action: types.ActionSpec,
    num_envs: int,
    batch_size: int,
    min_batch_size: int,
    timeout: float,
  ):
    self._batch_size = batch_size
    self._min_batch_size = min_batch_size
    self._timeout = timeout
    self._waiting: collections.deque[StepRequest] = collections.deque()
    self._num_waiting = 0
    # Requests that inference has, by number, and each environment's number.
    self._taken: dict[int, StepRequest] = {}
    self._next_number = 0
    self._number = np.full(num_envs, _NO_REQUEST, np.int64)
    self._action = np.zeros((num_envs, *action.shape), action.dtype)

  def append(
    self,
    lease: group_lease.GroupLease,
    leaves: list[np.ndarray],
    answer: Answer,
  ) -> None:
    """Adds the steps of a message, the leaves of an `EnvOutput`."""
    env_id = leaves[-1]
    size, now = len(env_id), time.monotonic()
    self._waiting.append(StepRequest(lease, leaves, env_id, answer, now, size))
    self._num_waiting += size

  def drop(self, lease: group_lease.GroupLease) -> None:
    """Drops a group's steps that inference has not taken."""
    kept = (r for r in self._waiting if r.lease is not lease)
    self._waiting = collections.deque(kept)
    self._num_waiting = sum(len(r.env_id) for r in self._waiting)

  def is_due(self, num_expected: int) -> bool:
    """Whether there is a batch, if `num_expected` environments may send."""
    if not self._waiting:
      return False
    enough = min(self._min_batch_size, num_expected)
    return self._num_waiting >= enough or self.seconds_left() == 0

  def seconds_left(self) -> float | None:
    """Returns the seconds until the oldest steps are due; None if none wait."""
    if not self._waiting:
      return None
    waited = time.monotonic() - self._waiting[0].arrival
    return max(0.0, self._timeout - waited)

  def take(self) -> list[StepRequest]:
    """Takes the oldest requests that fit a batch."""
    taken: list[StepRequest] = []
    room = self._batch_size
    while self._waiting and len(self._waiting[0].env_id) <= room:
      request = self._waiting.popleft()
      room -= len(request.env_id)
      self._taken[self._next_number] = request
      self._number[request.env_id] = self._next_number
      self._next_number += 1
      taken.append(request)
    self._num_waiting -= self._batch_size - room
    return taken

  def answer(
    self, action: np.ndarray, env_id: np.ndarray
  ) -> list[tuple[StepRequest, np.ndarray]]:
    """Returns the requests that are now complete, and their actions.

    Raises:
      ValueError: if an environment waits for no action.
    """
    numbers, counts = np.unique(self._number[env_id], return_counts=True)
    if numbers[0] == _NO_REQUEST:
      raise ValueError('An environment gets an action that it did not ask for.')
    self._action[env_id] = action
    self._number[env_id] = _NO_REQUEST
    answered = []
    for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
      request = self._taken[number]
      request.num_missing -= count
      if not request.num_missing:
        del self._taken[number]
        answered.append((request, self._action[request.env_id]))
    return answered
