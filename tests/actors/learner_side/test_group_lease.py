"""Tests for seedrl_jax/actors/learner_side/remote_stream.py: leases."""

import contextlib

import numpy as np
import pytest

from seedrl_jax.actors import wire
from seedrl_jax.actors.learner_side import remote_stream
from tests.actors import toys


def _send(*messages: bytes) -> None:
  """Sends a stream the messages of a group of three."""
  stream = remote_stream.RemoteStream(toys.SPEC, 3, 3, 1, 0.0)
  lease = stream.join(3)
  for message in messages:
    stream.submit(lease, *toys.unpack(message), print)


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
  _send(*_steps(toys.FIRST, toys.FIRST, toys.LAST, toys.FIRST, toys.FIRST))


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
    _send(*messages)


def test_scores_of_games_pass():
  _send(_edited(reward=-1e6), _episode(toys.MID, episode_return=4e6))


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


def _add(num_steps: int, *ended: int) -> None:
  stream = remote_stream.RemoteStream(toys.SPEC, 3, 3, 1, 0.0)
  lease = stream.join(3, acts_itself=True)
  stream.add_episodes(lease, toys.episodes(*ended), num_steps)


def test_episodes_of_a_report_pass():
  _add(8, 1, 1)
  _add(3, 0, 1, 2)


@pytest.mark.parametrize(
  'num_steps, ended, sentence',
  [(8, (3,), 'of no environment'), (3, (0, 1, 2, 0), '4 episodes')],
)
def test_episodes_of_the_impossible_are_refused(
  num_steps: int, ended: tuple[int, ...], sentence: str
):
  with pytest.raises(wire.WireError, match=sentence):
    _add(num_steps, *ended)
