"""Tests for seedrl_jax/actors/runs.py: what can be a run's next steps."""

import numpy as np
import pytest

from seedrl_jax.actors import runs, wire
from tests.actors import toys

_NUM_SLOTS = 10


def _run(*messages: bytes) -> runs.Run:
  """Returns a run of environments 4 to 6 that has had some messages."""
  run = runs.Run(np.array([4, 5, 6]), _NUM_SLOTS)
  for message in messages:
    run.accept(wire.parse(message).sequence, toys.rows(message))
  return run


def test_episodes_follow_each_other():
  kinds = [toys.FIRST, toys.MID, toys.LAST, toys.FIRST, toys.LAST, toys.FIRST]
  _run(*[toys.steps([4, 5, 6], kind, i) for i, kind in enumerate(kinds)])


def test_parts_of_a_group_in_any_order():
  _run(
    toys.steps([6], toys.FIRST, 0),
    toys.steps([5, 4], toys.FIRST, 1),
    toys.steps([5, 6], toys.MID, 2, ended=(5,)),
  )


_FIRST = toys.steps([4, 5, 6], toys.FIRST)


def _edited(**values: float) -> bytes:
  output = toys.output([4, 5, 6], toys.FIRST)
  for name, value in values.items():
    array = getattr(output, name).copy()
    array[1] = value
    output = output._replace(**{name: array})
  return toys.LAYOUT.pack_steps(output, toys.episodes(), 0)


def _bad_vector() -> bytes:
  output = toys.output([4, 5, 6], toys.FIRST)
  output.observation['more']['vector'][0, 1] = np.nan
  return toys.LAYOUT.pack_steps(output, toys.episodes(), 0)


def _bad_flag() -> bytes:
  message = bytearray(_FIRST)
  message[32 + 3 * 6] = 2  # after three images
  return toys.reseal(bytes(message))


def _episode(**values: float) -> bytes:
  ended = toys.episodes(4)
  for name, value in values.items():
    ended = ended._replace(**{name: np.array([value])})
  output = toys.output([4, 5, 6], toys.FIRST)
  return toys.LAYOUT.pack_steps(output, ended, 0)


@pytest.mark.parametrize(
  'messages, sentence',
  [
    ([toys.steps([4, 5, 6], toys.FIRST, 1)], 'Message 1 .* message 0 is due'),
    ([_FIRST, _FIRST], 'Message 0 came where message 1 is due'),
    ([toys.steps([], toys.FIRST)], 'no environment'),
    ([toys.steps([4, 3], toys.FIRST)], 'An env_id'),
    ([toys.steps([4, _NUM_SLOTS], toys.FIRST)], 'An env_id'),
    ([toys.steps([4, -6], toys.FIRST)], 'An env_id'),
    ([toys.steps([4, 5, 4], toys.FIRST)], 'twice'),
    ([toys.steps([4, 5, 6], toys.MID)], 'A FIRST step'),
    ([_FIRST, toys.steps([4, 5, 6], toys.FIRST, 1)], 'A FIRST step'),
    (
      [_FIRST, toys.steps([5], toys.LAST, 1), toys.steps([5], toys.LAST, 2)],
      'A FIRST step',
    ),
    ([toys.steps([4, 5, 6], 3)], 'type of step'),
    ([_edited(reward=np.inf)], 'A reward'),
    ([_edited(discount=1.5)], 'A discount'),
    ([_edited(discount=np.nan)], 'A discount'),
    ([_bad_vector()], 'An observation is not finite'),
    ([_bad_flag()], 'A boolean'),
    ([toys.steps([4], toys.FIRST, ended=(4, 5))], '2 episodes cannot end'),
    ([_episode(env_id=7)], 'An env_id'),
    ([_episode(episode_return=np.nan)], "An episode's return"),
    ([_episode(length=-1)], 'a negative length'),
    ([_episode(frames=-1)], 'a negative length'),
  ],
)
def test_refuses(messages: list[bytes], sentence: str):
  with pytest.raises(wire.WireError, match=sentence):
    _run(*messages)
