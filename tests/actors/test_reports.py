"""Tests for seedrl_jax/actors/reports.py."""

import numpy as np
import pytest

from seedrl_jax.actors import reports, wire
from seedrl_jax.envs import base
from tests.actors import toys

_REPORT = reports.Report(7, 1 << 40, 0.25, 12, toys.episodes(2, 3))


def test_a_report_comes_out_as_it_went_in():
  message = wire.parse(reports.pack(_REPORT, sequence=3))
  assert message.sequence == 3
  got = reports.unpack(message)
  assert got[:-1] == _REPORT[:-1]
  for a, b in zip(got.episodes, _REPORT.episodes, strict=True):
    np.testing.assert_array_equal(a, b)


def test_of_too_many_episodes_the_newest_are_told():
  columns = [np.arange(reports.MAX_EPISODES + 5)] * 5
  many = _REPORT._replace(episodes=toys.statistics.EndedEpisodes(*columns))
  message = reports.pack(many, 0)
  assert len(message) == reports.MAX_BYTES
  got = reports.unpack(wire.parse(message))
  assert got.episodes.length[[0, -1]].tolist() == [5, 10_004]


def test_work_adds_up():
  work = reports.ReportTotals(1, 0.5, 2)
  work.add(_REPORT._replace(env_steps=3))
  work.add(reports.ReportTotals(1, 1.0, 1))
  assert work == reports.ReportTotals(5, 1.75, 15)


def test_episodes_become_columns_under_the_learners_ids():
  episodes = [
    base.Episode(1, 2.0, 3, 6, True),
    base.Episode(0, 1.0, 4, 8, True),
  ]
  columns = reports.columns(episodes, np.array([5, 9], np.int32))
  assert columns.env_id.tolist() == [9, 5]
  assert columns.length.tolist() == [3, 4]
  assert reports.columns([], np.array([5])) is reports.NO_EPISODES


@pytest.mark.parametrize(
  'message, sentence',
  [
    (wire.pack_json(wire.MessageKind.END, {}), 'END came instead of REPORT'),
    (wire.pack(wire.MessageKind.REPORT, [], rows=2), 'must be of one row'),
    (wire.pack(wire.MessageKind.REPORT, [], rows=1), 'fewer bytes'),
    (
      wire.pack(wire.MessageKind.REPORT, [], rows=1, episodes=10_001),
      'more than 10000 episodes',
    ),
  ],
)
def test_what_is_no_report_is_refused(message: bytes, sentence: str):
  with pytest.raises(wire.WireError, match=sentence):
    reports.unpack(wire.parse(message))
