"""Tests for seedrl_jax/actors/parameters.py."""

import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.actors import parameters, wire

_SPECS = (
  types.ArraySpec((2, 3), np.dtype(np.float32)),
  types.ArraySpec((), np.dtype(np.int32)),
)


class _Learner:
  """Has parameters whose values tell the version; counts copies."""

  def __init__(self):
    self.version: int | None = None
    self.copies = 0

  def read(self):
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


def _feed() -> tuple[_Learner, parameters.ParameterFeed]:
  learner = _Learner()
  return learner, parameters.ParameterFeed(
    dict(zip('ab', _SPECS, strict=True)), learner.read
  )


def test_there_is_nothing_before_the_first_version():
  learner, feed = _feed()
  assert not feed.has_newer(types.NO_VERSION)
  learner.version = 0
  assert feed.has_newer(types.NO_VERSION)
  assert not feed.has_newer(0)


def test_a_version_is_copied_once_and_only_when_asked_for():
  learner, feed = _feed()
  for learner.version in range(5):
    assert feed.has_newer(learner.version - 1)
  assert learner.copies == 0
  messages = [feed.message() for _ in range(3)]
  assert learner.copies == len(_SPECS)
  assert messages[0] == messages[1] == messages[2]


def test_leaves_come_out_as_they_are_published():
  learner, feed = _feed()
  learner.version = 7
  unpacked = parameters.unpack(wire.parse(feed.message()), _SPECS)
  assert unpacked is not None
  version, leaves = unpacked
  assert version == 7
  for leaf, spec in zip(leaves, _SPECS, strict=True):
    assert (leaf.shape, leaf.dtype) == spec
    assert (leaf == 7).all()


def test_a_message_may_say_that_there_is_nothing_newer():
  message = wire.parse(parameters.NOTHING_NEWER)
  assert parameters.unpack(message, _SPECS) is None


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
    parameters.unpack(wire.parse(feed.message()), specs)


def test_another_message_is_refused():
  end = wire.parse(wire.pack_json(wire.MessageKind.END, {}))
  with pytest.raises(wire.WireError, match='END came instead of PARAMETERS'):
    parameters.unpack(end, _SPECS)
