"""Tests for seedrl_jax/actors/learner_side/remote_stream.py: leases."""

import contextlib

import numpy as np
import pytest

from seedrl_jax.actors import local_messages, wire
from seedrl_jax.actors.learner_side import remote_stream
from tests.actors import toys


def _lease(*messages: bytes) -> remote_stream.GroupLease:
  """Returns a lease of slots 4 to 6 whose group has sent some messages."""
  lease = remote_stream.GroupLease(np.array([4, 5, 6]))
  for message in messages:
    lease.accept(*toys.unpack(message))
  return lease


_FIRST = toys.steps([0, 1, 2], toys.FIRST)


def _edited(**values: float) -> bytes:
  output = toys.output([0, 1, 2], toys.FIRST)
  for name, value in values.items():
    array = getattr(output, name).copy()
    array[1] = value
    output = output._replace(**{name: array})
  return toys.CODEC.pack_steps(output, toys.episodes())


def _bad_vector(value: float) -> bytes:
  output = toys.output([0, 1, 2], toys.FIRST)
  output.observation['more']['vector'][0, 1] = value
  return toys.CODEC.pack_steps(output, toys.episodes())


def _bad_flag() -> bytes:
  message = bytearray(_FIRST)
  message[wire.HEADER_BYTES + 3 * 6] = 2  # after three images
  return bytes(message)


def _episode(kind: int = toys.FIRST, **values: float) -> bytes:
  ended = toys.episodes(1)
  for name, value in values.items():
    ended[name] = value
  return toys.CODEC.pack_steps(toys.output([4, 5, 6], kind), ended)


def _steps(*kinds: int) -> list[bytes]:
  return [toys.steps([0, 1, 2], kind) for kind in kinds]


def test_a_reset_may_take_several_steps():
  _lease(*_steps(toys.FIRST, toys.FIRST, toys.LAST, toys.FIRST, toys.FIRST))


@pytest.mark.parametrize(
  'messages, sentence',
  [
    ([toys.steps([0, 1, 2, 3], toys.FIRST)], 'STEPS of 4 .* a group of 3'),
    ([toys.steps([0, 1, 2], toys.MID)], 'A FIRST step'),
    (_steps(toys.FIRST, toys.MID, toys.FIRST), 'A FIRST step'),
    (_steps(toys.FIRST, toys.LAST, toys.LAST), 'A FIRST step'),
    ([toys.steps([0, 1, 2], 3)], 'type of step'),
    ([_edited(reward=np.inf)], 'A reward is not a number from -1,000,000 to'),
    ([_edited(reward=-1.1e6)], 'A reward'),
    ([_edited(discount=1.5)], 'A discount'),
    ([_edited(discount=np.nan)], 'A discount'),
    ([_bad_vector(np.nan)], 'An observation is not a number'),
    ([_bad_vector(1.1e6)], 'An observation is not a number'),
    ([_bad_flag()], 'A boolean'),
    ([toys.steps([0, 1, 2], toys.FIRST, ended=(1,) * 4)], '4 episodes cannot'),
    ([_episode(env_id=3)], 'of no environment of the group'),
    ([_episode(episode_return=np.nan)], "An episode's return"),
    # In four steps.
    ([_episode(episode_return=4.1e6)], "An episode's return"),
  ],
)
def test_refuses(messages: list[bytes], sentence: str):
  with pytest.raises(wire.WireError, match=sentence):
    _lease(*messages)


def test_scores_of_games_pass():
  _lease(_edited(reward=-1e6), _episode(toys.MID, episode_return=4e6))


@pytest.mark.parametrize(
  'value, dtype, passes',
  [
    (10**6, np.int32, True),
    (10**6 + 1, np.int32, False),
    (-(2**63), np.int64, False),
    (2**15, np.uint16, True),
    (np.inf, np.float16, False),
  ],
)
def test_integers_are_bounded_too(value: float, dtype: type, passes: bool):
  refusal = pytest.raises(wire.WireError, match='X is not a number')
  with contextlib.nullcontext() if passes else refusal:
    remote_stream._check_values(np.array([[0, value]], dtype), 'X')


def test_reports_follow_each_other():
  lease = remote_stream.GroupLease(np.array([4, 5, 6]), True)
  work = local_messages.Work(5, 0.5, 100)
  lease.accept_report(local_messages.Report(1, work, toys.episodes(1)))
  # Its last steps are not counted yet.
  ended = toys.episodes(0, 1, 2)
  lease.accept_report(local_messages.Report(1, episodes=ended))


@pytest.mark.parametrize(
  'work, ended, sentence',
  [
    ((5, np.nan), (1,), 'A wait'),
    ((5, -1.0), (1,), 'A wait'),
    ((5,), (3,), 'of no environment'),
    ((0,), (0, 1, 2, 0), '4 episodes'),
  ],
)
def test_a_report_of_the_impossible_is_refused(
  work: tuple, ended: tuple[int, ...], sentence: str
):
  lease = remote_stream.GroupLease(np.array([4, 5, 6]), True)
  work, ended = local_messages.Work(*work), toys.episodes(*ended)
  with pytest.raises(wire.WireError, match=sentence):
    lease.accept_report(local_messages.Report(1, work, ended))
