"""Tests for seedrl_jax/actors/local_messages.py."""

import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.actors import local_messages, wire
from seedrl_jax.envs import base


def test_of_too_many_episodes_the_newest_are_sent():
  many = np.zeros(10_005, base.EPISODE)
  many['length'] = np.arange(10_005)
  report = local_messages.Report(
    7, local_messages.Work(1 << 31, 0.25, 12), many
  )
  message = local_messages.pack_report(report)
  assert len(message) < local_messages.MAX_REPORT_BYTES
  got = local_messages.unpack_report(wire.parse(message))
  assert got[:-1] == report[:-1]
  assert got.episodes['length'][[0, -1]].tolist() == [5, 10_004]


def _report(**values: float) -> bytes:
  work = local_messages.Work(**values)
  return local_messages.pack_report(local_messages.Report(1, work))


@pytest.mark.parametrize(
  'message, sentence',
  [
    (wire.pack([], [], rows=2), 'must be of one row'),
    (wire.pack([], [], rows=1), 'fewer bytes'),
    (_report(store_wait=np.nan), 'A wait'),
    (_report(store_wait=-1.0), 'A wait'),
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
  """Parameters whose values are their version."""

  def __init__(self):
    self.version: int | None = None

  def latest(self) -> tuple[int, list[np.ndarray]]:
    if self.version is None:
      raise KeyError('nothing yet')
    return self.version, [np.full(s.shape, self.version) for s in _SPECS]


def _feed() -> tuple[_Learner, local_messages.ParameterFeed]:
  learner = _Learner()
  specs = dict(zip('ab', _SPECS, strict=True))
  return learner, local_messages.ParameterFeed(specs, learner.latest)


def test_a_version_is_packed_once():
  learner, feed = _feed()
  assert not feed.has_newer(types.NO_VERSION)
  for learner.version in 0, 1:
    assert feed.has_newer(learner.version - 1)
    assert not feed.has_newer(learner.version)
    message = feed.message()
    assert feed.message() is message
    got = local_messages.unpack_parameters(wire.parse(message), _SPECS)
    assert got is not None and got[0] == learner.version


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
