"""Tests for seedrl_jax/actors/local_messages.py."""

import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.actors import local_messages, wire
from seedrl_jax.envs import base
from tests.actors import toys

_REPORT = local_messages.Report(7, 1 << 31, 0.25, 12, toys.episodes(2, 3))


def test_a_report_comes_out_as_it_went_in():
  message = wire.parse(local_messages.pack_report(_REPORT, sequence=3))
  assert message.sequence == 3
  got = local_messages.unpack_report(message)
  assert got[:-1] == _REPORT[:-1]
  for a, b in zip(got.episodes, _REPORT.episodes, strict=True):
    np.testing.assert_array_equal(a, b)


def test_of_too_many_episodes_the_newest_are_told():
  many = base.EndedEpisodes(*[np.arange(10_005)] * 5)
  message = local_messages.pack_report(_REPORT._replace(episodes=many), 0)
  assert len(message) < local_messages.MAX_REPORT_BYTES
  got = local_messages.unpack_report(wire.parse(message))
  assert got.episodes.length[[0, -1]].tolist() == [5, 10_004]


def test_episodes_become_columns():
  episodes = [
    base.Episode(1, 2.0, 3, 6, True),
    base.Episode(0, 1.0, 4, 8, True),
  ]
  columns = local_messages.episode_columns(episodes)
  assert columns.env_id.tolist() == [1, 0]
  assert columns.length.tolist() == [3, 4]
  assert local_messages.episode_columns([]) is local_messages.NO_EPISODES


@pytest.mark.parametrize(
  'message, sentence',
  [
    (wire.pack(wire.MessageKind.REPORT, [], rows=2), 'must be of one row'),
    (wire.pack(wire.MessageKind.REPORT, [], rows=1), 'fewer bytes'),
  ],
)
def test_what_is_no_report_is_refused(message: bytes, sentence: str):
  with pytest.raises(wire.WireError, match=sentence):
    local_messages.unpack_report(wire.parse(message))


_SPECS = (
  types.ArraySpec((2, 3), np.dtype(np.float32)),
  types.ArraySpec((), np.dtype(np.int32)),
)


class _Learner:
  """Parameters whose values are their version; counts copies."""

  def __init__(self):
    self.version: int | None = None
    self.copies = 0

  def latest(self):
    if self.version is None:
      raise KeyError('nothing yet')
    return self.version, [_Leaf(self, spec) for spec in _SPECS]


class _Leaf:
  def __init__(self, learner: _Learner, spec: types.ArraySpec):
    self._learner = learner
    self._spec = spec

  def __array__(self, dtype=None, copy=None) -> np.ndarray:
    self._learner.copies += 1
    shape = self._spec.shape
    return np.full(shape, self._learner.version, self._spec.dtype)


def _feed() -> tuple[_Learner, local_messages.ParameterFeed]:
  learner = _Learner()
  specs = dict(zip('ab', _SPECS, strict=True))
  return learner, local_messages.ParameterFeed(specs, learner.latest)


def test_a_version_is_copied_once_and_only_when_asked_for():
  learner, feed = _feed()
  assert not feed.has_newer(types.NO_VERSION)
  for learner.version in range(5):
    assert feed.has_newer(learner.version - 1)
    assert not feed.has_newer(learner.version)
  assert learner.copies == 0
  messages = [feed.message() for _ in range(3)]
  assert learner.copies == len(_SPECS)
  assert messages[0] == messages[1] == messages[2]


@pytest.mark.parametrize(
  'specs, sentence',
  [
    (_SPECS[:1], 'bytes too many'),
    ((*_SPECS, _SPECS[0]), 'fewer bytes'),
  ],
)
def test_other_parameters_are_refused(specs, sentence: str):
  learner, feed = _feed()
  learner.version = 1
  with pytest.raises(wire.WireError, match=sentence):
    local_messages.unpack_parameters(wire.parse(feed.message()), specs)
