"""Environments of remote actors, as an `EnvStream` of the learner.

An inference worker receives and sends as with local environments. `server`
calls the rest, from its own thread: groups of environments `join`, `submit`
their steps and `leave`. Steps of all groups are batched: a batch goes out when
it has the least size, when no other environment can join it, or when its first
steps have waited long enough. Nothing waits for one slow actor.
"""

import collections
import dataclasses
import threading
import time
from collections.abc import Callable

import numpy as np

from seedrl_jax import types
from seedrl_jax.actors import reports, wire
from seedrl_jax.actors.learner_side import group_lease
from seedrl_jax.envs import base, statistics

# Takes the actions [n, ...] of a message's environments, in its order; called
# in the thread that sends.
Answer = Callable[[np.ndarray], None]

_NOBODY = -1
_NO_ID = np.zeros(0, np.int32)


@dataclasses.dataclass(eq=False)
class _Request:
  """Steps of one message, from their arrival until all have actions."""

  run: group_lease.Run
  leaves: list[np.ndarray]
  env_id: np.ndarray
  answer: Answer
  arrival: float
  missing: int


class RemoteStream(base.EnvStream):
  """As many environments as actors bring, up to a number of slots."""

  def __init__(
    self,
    spec: base.StreamSpec,
    num_envs: int,
    batch_size: int,
    min_batch_size: int,
    timeout: float,
  ):
    """Makes a stream that has no environment yet.

    Args:
      spec: what one environment looks like.
      num_envs: slots; ids are `[0, num_envs)`.
      batch_size: the most environments that one `recv` gives, and that one
        message may be about.
      min_batch_size: how many are worth a batch at once.
      timeout: seconds after which fewer are one, too.

    Raises:
      ValueError: where these sizes cannot be had.
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
    self._least = min_batch_size
    self._timeout = timeout
    self._episodes = statistics.EpisodeLog()
    self._reported = reports.Work()
    # Guards everything below.
    self._changed = threading.Condition()
    self._closed = False
    self._failure: BaseException | None = None
    self._runs: set[group_lease.Run] = set()
    self._free = np.ones(num_envs, bool)
    self._waiting: collections.deque[_Request] = collections.deque()
    self._num_waiting = 0
    # Requests that were received and want actions, and whose each slot is.
    self._received: dict[int, _Request] = {}
    self._next_serial = 0
    self._owner = np.full(num_envs, _NOBODY, np.int64)
    action = spec.action
    self._action = np.zeros((num_envs, *action.shape), action.dtype)
    self._left: list[np.ndarray] = []  # since the last batch was received
    self._dropped = _NO_ID  # before it was

  @property
  def min_batch_size(self) -> int:
    """See `EnvStream.min_batch_size`; a group may have one environment."""
    return 1

  @property
  def num_connected(self) -> int:
    """Environments that are there."""
    with self._changed:
      return sum(len(run.env_id) for run in self._runs)

  @property
  def reported(self) -> reports.Work:
    """What groups that act themselves have done; a copy."""
    with self._changed:
      return dataclasses.replace(self._reported)

  # -- for the inference worker ----------------------------------------------

  def recv(self) -> types.EnvOutput:
    """See `EnvStream.recv`; without actors it waits until some come."""
    with self._changed:
      while not self._is_due():
        self._changed.wait(self._patience())
      self._check_open()
      taken = self._take()
      if self._left:
        # Some may have come and gone again since the last batch.
        self._dropped = np.unique(np.concatenate(self._left))
        self._left.clear()
    columns = zip(*(request.leaves for request in taken), strict=True)
    *observation, reward, discount, step_type, env_id = map(
      np.concatenate, columns
    )
    return types.EnvOutput(
      wire.unflatten(self.spec.observation, observation),
      reward,
      discount,
      step_type,
      env_id,
    )

  def take_dropped(self) -> np.ndarray:
    """See `EnvStream.take_dropped`."""
    dropped, self._dropped = self._dropped, _NO_ID
    return dropped

  def send(self, action: np.ndarray, env_id: np.ndarray) -> None:
    """See `EnvStream.send`; actions for environments that left are lost."""
    if action.shape != (len(env_id), *self.spec.action.shape):
      raise ValueError(
        f'action {action.shape} of {len(env_id)} environments must be '
        f'{(len(env_id), *self.spec.action.shape)}.'
      )
    answered = []
    with self._changed:
      self._check_open()
      serials, counts = np.unique(self._owner[env_id], return_counts=True)
      if serials[0] == _NOBODY:
        raise ValueError('An environment gets an action that it did not ask.')
      self._action[env_id] = action
      self._owner[env_id] = _NOBODY
      for serial, count in zip(serials.tolist(), counts.tolist(), strict=True):
        request = self._received[serial]
        request.missing -= count
        if not request.missing:
          del self._received[serial]
          answered.append((request, self._action[request.env_id]))
    for request, actions in answered:
      request.answer(actions)

  def take_episodes(self) -> list[base.Episode]:
    """See `EnvStream.take_episodes`."""
    return self._episodes.take()

  @property
  def dropped_episodes(self) -> int:
    """See `EnvStream.dropped_episodes`."""
    return self._episodes.dropped

  def close(self) -> None:
    """See `EnvStream.close`; what actors submit from now on waits for ever."""
    with self._changed:
      self._closed = True
      self._changed.notify_all()

  # -- for the server ----------------------------------------------------------

  @property
  def num_free(self) -> int:
    """Slots that nobody has."""
    with self._changed:
      return int(np.count_nonzero(self._free))

  def join(
    self, num_envs: int, acts_itself: bool = False
  ) -> group_lease.Run | None:
    """Gives a group of environments slots.

    Side by side where possible: what inference does with consecutive ids is
    cheaper.

    Args:
      num_envs: of the group.
      acts_itself: whether it will `report`, rather than `submit` steps.

    Returns:
      The group's run, for these and `leave`; None where there is no room.
    """
    with self._changed:
      free = np.flatnonzero(self._free)
      if len(free) < num_envs:
        return None
      spans = free[num_envs - 1 :] - free[: len(free) - num_envs + 1]
      start = int(np.argmin(spans))
      slots = free[start : start + num_envs]
      self._free[slots] = False
      run = group_lease.Run(slots, self.num_envs, acts_itself)
      self._runs.add(run)
    return run

  def submit(
    self,
    run: group_lease.Run,
    sequence: int,
    rows: wire.StepRows,
    answer: Answer,
  ) -> None:
    """Takes a message of steps.

    Args:
      run: whose.
      sequence: number of the message in its stream.
      rows: what it holds; must stay as it is.
      answer: takes the actions, once.

    Raises:
      wire.WireError: where these cannot be the run's next steps.
    """
    run.accept(sequence, rows)
    env_id = rows.output[-1]
    size = len(env_id)
    if size > self.batch_size:
      raise wire.WireError(f'{size} environments are too many for a message.')
    if len(rows.episodes.env_id):
      self._episodes.append(rows.episodes)
    with self._changed:
      if run not in self._runs:
        return
      self._waiting.append(
        _Request(run, rows.output, env_id, answer, time.monotonic(), size)
      )
      self._num_waiting += size
      self._changed.notify()

  def report(
    self, run: group_lease.Run, sequence: int, report: reports.Report
  ) -> None:
    """Takes what a group that acts itself has done since its last report.

    Args:
      run: whose.
      sequence: number of the report in its stream.
      report: what it says.

    Raises:
      wire.WireError: where this cannot be the run's next report.
    """
    run.accept_report(sequence, report)
    if len(report.episodes.env_id):
      self._episodes.append(report.episodes)
    with self._changed:
      self._reported.add(report)

  def leave(self, run: group_lease.Run) -> None:
    """Frees a group's slots; steps that were not received yet are dropped."""
    with self._changed:
      if run not in self._runs:
        return
      self._runs.remove(run)
      self._waiting = collections.deque(
        request for request in self._waiting if request.run is not run
      )
      self._num_waiting = sum(len(r.env_id) for r in self._waiting)
      self._free[run.env_id] = True
      if run.acts_itself:
        # Inference has nothing of it to drop.
        return
      self._left.append(run.env_id)
      # Those that are left may be all that a batch waits for.
      self._changed.notify()

  def fail(self, error: BaseException) -> None:
    """Lets `recv` and `send` raise what ended the server."""
    with self._changed:
      self._failure = error
      self._changed.notify_all()

  # -- while the lock is held --------------------------------------------------

  def _check_open(self) -> None:
    if self._failure is not None:
      raise self._failure
    if self._closed:
      raise base.StreamClosed(
        f'The stream of remote {self.spec.name} is closed.'
      )

  def _expected(self) -> int:
    """Environments whose steps may come."""
    return sum(len(r.env_id) for r in self._runs if not r.acts_itself)

  def _is_due(self) -> bool:
    """Whether `recv` can go on: with a batch, or because of the end."""
    if self._closed or self._failure is not None:
      return True
    if not self._waiting:
      return False
    if self._num_waiting >= self._least:
      return True
    return self._num_waiting == self._expected() or self._patience() == 0

  def _patience(self) -> float | None:
    """Seconds that the steps that wait longest may still wait."""
    if not self._waiting:
      return None
    waited = time.monotonic() - self._waiting[0].arrival
    return max(0.0, self._timeout - waited)

  def _take(self) -> list[_Request]:
    """Takes the oldest requests that fit a batch out of the queue."""
    taken: list[_Request] = []
    room = self.batch_size
    while self._waiting and len(self._waiting[0].env_id) <= room:
      request = self._waiting.popleft()
      room -= request.missing
      self._received[self._next_serial] = request
      self._owner[request.env_id] = self._next_serial
      self._next_serial += 1
      taken.append(request)
    self._num_waiting -= self.batch_size - room
    return taken
