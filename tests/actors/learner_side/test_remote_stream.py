"""Tests for seedrl_jax/actors/learner_side/remote_stream.py."""

import threading

import chex
import numpy as np
import pytest

from seedrl_jax.actors import wire
from seedrl_jax.actors.learner_side import remote_stream
from seedrl_jax.envs import base
from tests.actors import toys

# Never reached: a test would hang instead.
_FOREVER = 1e6


def _stream(
  num_envs: int = 8,
  batch_size: int = 4,
  least: int = 1,
  timeout: float = _FOREVER,
) -> remote_stream.RemoteStream:
  return remote_stream.RemoteStream(
    toys.SPEC, num_envs, batch_size, least, timeout
  )


class _Member:
  """A group that has joined, and the answers that it got."""

  def __init__(self, stream: remote_stream.RemoteStream, num_envs: int):
    lease = stream.join(num_envs)
    assert lease is not None
    self.lease: remote_stream.GroupLease = lease
    self.env_id = lease.env_id
    self.answers: list[list] = []
    self._stream = stream

  def submit(self, step_type: int, ended: tuple[int, ...] = ()) -> None:
    message = toys.steps(self.env_id, step_type, ended=ended)
    self._stream.submit(
      self.lease,
      *toys.unpack(message),
      lambda action: self.answers.append(action.tolist()),
    )


def test_more_than_a_batch_waits_in_its_order():
  stream = _stream(batch_size=3)
  members = [_Member(stream, 2) for _ in range(3)]
  for member in reversed(members):
    member.submit(toys.FIRST)
  assert [stream.recv().env_id.tolist() for _ in range(3)] == [
    [4, 5],
    [2, 3],
    [0, 1],
  ]


def test_nothing_waits_for_who_leaves():
  stream = _stream(least=4)
  a, b = _Member(stream, 2), _Member(stream, 2)
  a.submit(toys.FIRST)
  batches = []
  thread = threading.Thread(target=lambda: batches.append(stream.recv()))
  thread.start()
  stream.leave(b.lease)
  thread.join()
  assert batches[0].env_id.tolist() == [0, 1]


def test_nothing_waits_for_a_slow_actor():
  stream = _stream(least=4, timeout=0.001)
  a, b = _Member(stream, 2), _Member(stream, 2)
  for step_type in toys.FIRST, toys.MID, toys.MID:
    a.submit(step_type)
    batch = stream.recv()
    assert batch.env_id.tolist() == [0, 1]
    stream.send(np.zeros(2, np.int32), batch.env_id)
  assert len(a.answers) == 3
  b.submit(toys.FIRST)
  assert stream.recv().env_id.tolist() == [2, 3]


def test_the_next_batch_comes_with_the_ids_that_left():
  stream = _stream(num_envs=2, batch_size=2)
  gone, other = _Member(stream, 1), _Member(stream, 1)
  other.submit(toys.FIRST)
  assert stream.recv().env_id.tolist() == [1]
  assert not len(stream.take_dropped())
  gone.submit(toys.FIRST)
  stream.leave(gone.lease)
  stream.leave(gone.lease)
  assert not len(stream.take_dropped()), 'before the next batch'
  # The slot is leased and freed once more before there is a batch.
  stream.leave(_Member(stream, 1).lease)
  new = _Member(stream, 1)
  assert new.env_id.tolist() == [0]
  new.submit(toys.FIRST)
  chex.assert_trees_all_equal(stream.recv(), toys.output([0], toys.FIRST))
  assert stream.take_dropped().tolist() == [0]
  assert not len(stream.take_dropped())


def test_actions_of_who_left_go_to_nobody_else():
  stream = _stream(num_envs=1, batch_size=1)
  gone = _Member(stream, 1)
  gone.submit(toys.FIRST)
  stream.recv()
  stream.leave(gone.lease)
  new = _Member(stream, 1)
  new.submit(toys.FIRST)
  stream.send(np.array([3]), np.array([0]))
  assert (gone.answers, new.answers) == ([[3]], [])
  stream.recv()
  stream.send(np.array([2]), np.array([0]))
  assert new.answers == [[2]]


def test_episodes_are_reported():
  stream = _stream()
  # The second group's ids do not begin with 0.
  _, member = _Member(stream, 2), _Member(stream, 3)
  member.submit(toys.FIRST, ended=(1, 2))
  # Views would keep whole messages.
  (logged,) = stream._episodes._batches
  assert all(column.base is None for column in logged)
  assert stream.take_episodes() == [
    base.Episode(3, 1.5, 4, False),
    base.Episode(4, 2.5, 5, True),
  ]
  assert stream.take_episodes() == []
  lease, ended = stream.join(2), toys.episodes(1)
  ended['task'] = 1
  with pytest.raises(wire.WireError, match='of no task of the run'):
    stream.add_episodes(lease, ended, 2)


@pytest.mark.parametrize('error', [None, OSError('The server is gone.')])
def test_the_end_wakes_who_waits(error: BaseException | None):
  stream = _stream()
  caught: list[BaseException] = []

  def recv() -> None:
    try:
      stream.recv()
    except BaseException as e:
      caught.append(e)

  thread = threading.Thread(target=recv)
  thread.start()
  stream.close(error)
  thread.join()
  kind = base.StreamClosed if error is None else OSError
  assert isinstance(caught[0], kind)
  with pytest.raises(kind):
    stream.send(np.array([1]), np.array([0]))


def test_no_batch_waits_for_those_that_act_themselves():
  stream = _stream(least=4)
  actor = stream.join(3, acts_itself=True)
  assert actor is not None
  member = _Member(stream, 2)
  assert (stream.num_connected, stream.num_free) == (5, 3)
  # No other environment can join the batch, so it does not wait.
  member.submit(toys.FIRST)
  assert stream.recv().env_id.tolist() == [3, 4]
  stream.leave(actor)
  assert (stream.num_connected, stream.num_free) == (2, 6)
  stream.send(np.zeros(2, np.int32), member.env_id)
  member.submit(toys.MID)
  stream.recv()
  # Inference had nothing half-built of theirs.
  assert stream.take_dropped().tolist() == []
